// SPDX-License-Identifier: GPL-2.0

//! Positions and wire cursors against arithmetic without bounds.

use crate::proto::cursor::*;

use crate::common::property;

fn ring(n: u32) -> RingSize {
    RingSize::new(n).unwrap()
}

#[test]
fn ring_of_no_bytes_does_not_exist() {
    assert_eq!(RingSize::new(0), None);
    assert_eq!(ring(u32::MAX).wide(), u64::from(u32::MAX));
}

#[test]
fn cursor_wraps_from_the_last_lap_to_lap_0() {
    let r = ring(16_384);
    let last = Pos::new(65_536 * 16_384 - 1);
    let c = |p: Pos| (p.cursor(r).wrap, p.cursor(r).count);
    assert_eq!(c(last), (0xffff, 16_383));
    assert_eq!(c(last.advance(1)), (0, 0));
    assert_eq!(c(last.advance(2)), (0, 1));
    assert_eq!(last.distance_to(Cursor { wrap: 0, count: 1 }, r), Some(2));
}

#[test]
fn count_is_never_the_ring_size() {
    for size in 1..=5 {
        for p in 0..40 {
            let c = Pos::new(p).cursor(ring(size));
            assert!(c.count < size);
            assert_eq!(u64::from(c.wrap) * u64::from(size) + u64::from(c.count), p);
        }
    }
}

#[test]
fn cursor_outside_the_ring_has_no_distance() {
    let r = ring(8);
    for (count, ok) in [(7, true), (8, false), (9, false), (u32::MAX, false)] {
        let c = Cursor { wrap: 0, count };
        assert_eq!(Pos::ZERO.distance_to(c, r).is_some(), ok, "{count}");
    }
}

#[test]
fn distances_agree_with_unbounded_arithmetic() {
    property("cursor distance", 20_000, |rng| {
        let most = 1 << rng.below(30);
        let size = rng.range(1, most) as u32;
        let r = ring(size);
        let m = modulus(r);
        assert_eq!(m, u64::from(size) << 16);
        let at = rng.next() >> 4;
        let ahead = rng.below(m);
        let here = Pos::new(at);
        let there = Pos::new(at + ahead);
        assert_eq!(here.distance_to(there.cursor(r), r), Some(ahead));
        let back = (m - ahead) % m;
        assert_eq!(there.distance_to(here.cursor(r), r), Some(back));
    });
}

#[test]
fn ranges_cover_the_bytes_in_order() {
    for size in 1u32..=6 {
        for at in 0u32..14 {
            for len in 0..=size + 2 {
                let got = Pos::new(at.into()).ranges(len, ring(size));
                let mut offsets = vec![];
                for part in got.iter() {
                    assert!(part.len > 0 && part.offset + part.len <= size);
                    offsets.extend(part.offset..part.offset + part.len);
                }
                let want: Vec<u32> = (at..at + len.min(size)).map(|p| p % size).collect();
                assert_eq!(offsets, want, "{size} {at} {len}");
                assert_eq!(got.total(), len.min(size));
                assert_eq!(got.first().len + got.second().len, got.total());
                for n in 0..=size + 1 {
                    let left: Vec<u32> = (got.behind(n).iter())
                        .flat_map(|part| part.offset..part.offset + part.len)
                        .collect();
                    assert_eq!(left, want[(n as usize).min(want.len())..]);
                }
            }
        }
    }
    assert_eq!(Ranges::EMPTY.iter().count(), 0);
}

#[test]
fn since_never_goes_below_zero() {
    assert_eq!(Pos::new(5).since(Pos::new(3)), 2);
    assert_eq!(Pos::new(3).since(Pos::new(5)), 0);
    assert_eq!(Pos::new(u64::MAX).since(Pos::ZERO), u32::MAX);
    assert_eq!(Pos::new(u64::MAX).advance(7).get(), u64::MAX);
}
