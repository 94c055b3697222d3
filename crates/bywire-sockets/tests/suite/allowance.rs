//! Spinning costs a thread at most a fiftieth of its time beyond what spinning saves. The code is the library's own.

#[path = "../../src/wakeup/allowance.rs"]
mod code;

use code::{Allowance, REST_FACTOR};

/// For any sequence of waits, the cost of spinning beyond what it saves stays within its share of the time.
#[test]
fn uncovered_losses_are_at_most_a_fiftieth_of_the_time() {
    // A fruitless spin, a time slice of one other thread, and time slices of sixteen.
    let losses_ns = [30_000u64, 3_000_000, 48_000_000];
    for (number, vain_every) in [(0, 1), (1, 1), (2, 1), (0, 7), (1, 50), (2, 1000)] {
        let (mut thread, mut now_ns, mut lost_ns, mut saved_ns) = (Allowance::default(), 1u64, 0u64, 0u64);
        for wait in 0..200_000u64 {
            // The other time of a wait.
            now_ns += 5_000;
            if thread.rests(|| now_ns) {
                continue;
            }
            if wait % vain_every == 0 {
                now_ns += losses_ns[number];
                lost_ns += losses_ns[number];
                thread.lose(losses_ns[number], now_ns);
            } else {
                saved_ns += 2_000;
                thread.save();
            }
        }
        // The first spin, and the credit of a new thread, are not paid for.
        let due_ns = now_ns / REST_FACTOR + saved_ns + losses_ns[number] + 60_000;
        assert!(lost_ns <= due_ns, "{lost_ns} ns lost of {now_ns}, every {vain_every}th wait in vain");
    }
}

#[test]
fn a_thread_that_spins_with_success_continues_to_spin() {
    let mut thread = Allowance::default();
    for wait in 1..100_000u64 {
        assert!(!thread.rests(|| wait * 5_000));
        // One wait of twenty is fruitless.
        if wait % 20 == 0 { thread.lose(30_000, wait * 5_000) } else { thread.save() }
    }
}

#[test]
fn a_rest_from_spinning_ends() {
    let mut thread = Allowance::default();
    thread.lose(1_000_000, 1_000_000);
    assert!(thread.rests(|| 2_000_000));
    assert!(!thread.rests(|| 1_000_000 + REST_FACTOR * 1_000_000));
}
