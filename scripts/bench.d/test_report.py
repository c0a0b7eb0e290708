#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of the report: python3 -m unittest discover -s scripts/bench.d."""

import unittest

import report
from rows import GROUPS, PROGRAMS, ROWS


def record(implementation, repetition, **values):
    return {"setup": "two", "repetition": repetition, "measurement": "-",
            "implementation": implementation,
            "values": {name.replace("_", "."): value for name, value in values.items()}}


class Report(unittest.TestCase):
    def test_ratios_are_formed_within_a_repetition(self):
        # The host was three times as slow in the second one: that hits both alike.
        rows = report.evaluate([
            record("c", 0, bulk1=100.0), record("ours", 0, bulk1=150.0),
            record("c", 1, bulk1=33.0), record("ours", 1, bulk1=49.5)])["two"]
        ratio = rows["bulk1"]["advantage"]["c"]
        self.assertEqual([round(v, 6) for v in ratio["all"]], [1.5, 1.5])
        self.assertAlmostEqual(ratio["q1"], ratio["q3"])

    def test_less_is_better_where_it_is(self):
        rows = report.evaluate([record("tcp", 0, rr64_p50=50.0), record("ours", 0, rr64_p50=100.0)])["two"]
        self.assertEqual(rows["rr64.p50"]["advantage"]["tcp"]["median"], 0.5)

    def test_a_failed_half_gives_no_ratio(self):
        failed = {"setup": "two", "repetition": 0, "measurement": "bulk1", "implementation": "c",
                  "failure": "gone"}
        rows = report.evaluate([failed, record("ours", 0, bulk1=1.0), record("c", 1, bulk1=1.0)])["two"]
        self.assertEqual(rows["bulk1"]["advantage"], {})

    def test_quartiles_of_five_are_the_second_and_the_fourth(self):
        self.assertEqual(report.spread([5, 1, 4, 2, 3]), {"median": 3, "q1": 2, "q3": 4})

    def test_table_has_a_line_for_each_row_and_a_dash_for_what_is_missing(self):
        text = report.table(report.evaluate([record("ours", 0, bulk1=123.4, rr64_mean=5.0)]), {})
        lines = [line for line in text.splitlines() if "Mbit/s" in line]
        self.assertEqual(len(lines), 1)
        self.assertIn("123 (123-123)", lines[0])
        self.assertTrue(lines[0].endswith("-"))

    def test_every_row_belongs_to_a_measurement(self):
        known = {name for group in GROUPS for name in group}
        self.assertEqual({row[0] for row in ROWS.values()}, known)
        self.assertLessEqual(PROGRAMS.keys(), known)


if __name__ == "__main__":
    unittest.main()
