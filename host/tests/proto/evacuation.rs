// SPDX-License-Identifier: GPL-2.0

//! How long connections that leave a link wait for the other one.

use crate::proto::group::*;

/// How long a connection waits that comes at `came` in an evacuation that began at 0, if something arrives every `each`
/// milliseconds, or never.
fn waits(came: i64, each: Option<i64>) -> i64 {
    let mut arrived = u32::MAX - 3;
    let mut queueing = Evacuation::begin(0).queue(arrived, came);
    let mut now = came;
    loop {
        match queueing.left_ms(arrived, now) {
            None => return now - came,
            Some(left) => {
                let left = i64::from(left);
                assert!(left <= i64::from(STALLED_MS));
                match each {
                    Some(ms) if ms <= left => {
                        now += ms;
                        arrived = arrived.wrapping_add(1);
                    }
                    _ => now += left,
                }
            }
        }
    }
}

#[test]
fn who_moves_waits_as_long_as_something_arrives_and_not_for_ever() {
    let (stalled, all) = (i64::from(STALLED_MS), i64::from(EVACUATION_MS));
    assert!(all > stalled);
    for came in [0, 1, all - stalled] {
        assert_eq!(waits(came, None), stalled, "{came}");
        assert_eq!(waits(came, Some(stalled + 1)), stalled, "{came}");
    }
    // A drip does not do: neither for one connection, nor for all that come one after the other.
    for each in [1, 7, 1000, stalled - 1] {
        for came in [0, 10, all - 10] {
            let waited = waits(came, Some(each));
            assert_eq!(came + waited, all, "{came} {each}");
        }
    }
    assert_eq!(waits(all, Some(1)), 0);
    assert_eq!(waits(all + 100, None), 0);
}

#[test]
fn what_arrives_begins_the_wait_anew() {
    let mut queueing = Evacuation::begin(100).queue(5, 100);
    assert_eq!(queueing.left_ms(5, 100), Some(STALLED_MS));
    assert_eq!(queueing.left_ms(5, 1100), Some(STALLED_MS - 1000));
    assert_eq!(queueing.left_ms(6, 1200), Some(STALLED_MS));
    assert_eq!(queueing.left_ms(6, 1201), Some(STALLED_MS - 1));
    assert_eq!(queueing.left_ms(6, 1200 + i64::from(STALLED_MS)), None);
    // Clocks that are out of all bounds end it, or let it go on; nothing overflows.
    let mut late = Evacuation::begin(i64::MAX).queue(0, i64::MAX);
    assert_eq!(late.left_ms(0, i64::MAX), None);
    assert_eq!(
        Evacuation::begin(i64::MIN)
            .queue(0, i64::MIN)
            .left_ms(0, i64::MIN),
        Some(STALLED_MS)
    );
}
