//! Each fault that is planted in the channels is found by the test that is there for it.

use std::panic::catch_unwind;

use bywire_wire::planted::{Bug, CHANNEL_BUGS, plant};

use crate::{hostile, making};

fn test_of(bug: Bug) -> fn() {
    match bug {
        Bug::HelloPromoted => hostile::packets_that_are_replayed_at_any_later_time_change_nothing,
        Bug::OldHelloTaken => hostile::hellos_of_an_earlier_service_do_not_keep_the_present_one_out,
        Bug::OwnChannelGoes => making::simultaneous_opens_end_with_the_same_channel_at_both_ends,
        Bug::CandidateForever => {
            hostile::a_known_node_that_floods_with_hellos_costs_no_memory_and_ends_no_channel
        }
        Bug::MessageTwice => making::messages_that_came_without_the_sender_hearing_of_it_come_once,
        Bug::MessageForgotten => making::a_node_that_calls_from_a_new_address_is_followed,
        Bug::EphemeralRepeated => {
            making::a_node_that_does_not_answer_is_reported_and_asked_less_and_less_often
        }
        Bug::SharedSecretIgnored => {
            hostile::nodes_with_different_shared_secrets_make_no_channel_and_the_one_that_asked_can_tell
        }
        Bug::Mac1Unchecked => hostile::a_node_with_another_key_gets_no_answer_and_both_sides_can_tell,
        Bug::CookieForAll | Bug::CookieForever => {
            hostile::a_node_gets_through_a_flood_with_a_cookie_that_is_good_for_its_address_only
        }
        Bug::LoadIgnored => hostile::a_flood_of_hellos_costs_bounded_work_and_no_memory,
        other => panic!("{other:?} is no fault of channels"),
    }
}

#[test]
fn every_planted_fault_is_found() {
    let mut hidden = Vec::new();
    for bug in CHANNEL_BUGS {
        plant(Some(bug));
        if catch_unwind(test_of(bug)).is_ok() {
            hidden.push(bug);
        }
        plant(None);
    }
    assert!(hidden.is_empty(), "not found: {hidden:?}");
}
