//! Each of 18 faults planted in channels is found by its test.

use std::panic::catch_unwind;

use bywire_wire::planted::{Bug, CHANNEL_BUGS, plant};

use super::{hostile, making, renewal, replays};

fn test_of(bug: Bug) -> fn() {
    match bug {
        Bug::HelloPromoted => hostile::packets_that_are_replayed_at_any_later_time_change_nothing,
        Bug::OldHelloTaken => hostile::replayed_hellos_of_an_earlier_service_do_not_exclude_the_present_one,
        Bug::OwnChannelGoes => making::simultaneous_opens_end_with_the_same_channel_at_both_ends,
        Bug::CandidateForever => {
            hostile::a_known_node_that_floods_with_hellos_costs_no_memory_and_ends_no_channel
        }
        Bug::MessageTwice => making::messages_with_a_lost_acknowledgement_are_delivered_once,
        Bug::MessageForgotten => making::a_node_at_a_new_address_is_followed,
        Bug::EphemeralRepeated => making::a_silent_node_is_reported_and_retried_with_backoff,
        Bug::SharedSecretIgnored => {
            hostile::nodes_with_different_shared_secrets_make_no_channel_and_the_initiator_reports_it
        }
        Bug::Mac1Unchecked => hostile::a_node_with_a_wrong_key_gets_no_answer_and_both_sides_report_it,
        Bug::CookieForAll | Bug::CookieForever => {
            hostile::during_a_flood_a_node_connects_with_a_cookie_bound_to_its_address
        }
        Bug::LoadIgnored => hostile::a_flood_of_hellos_costs_bounded_work_and_no_memory,
        Bug::CandidateDisplaced => {
            replays::replays_of_services_that_were_never_heard_displace_no_answered_hello
        }
        Bug::AddressUnproved => replays::a_first_packet_that_is_repeated_from_elsewhere_moves_no_channel,
        Bug::KeysForever => renewal::a_channel_in_use_gets_new_keys_every_two_minutes_and_loses_nothing,
        Bug::OldKeysKept => renewal::keys_from_before_a_renewal_are_good_for_a_moment_only,
        Bug::RenewalMoves => renewal::a_channel_whose_keys_cannot_be_renewed_goes_on_for_five_minutes,
        Bug::AnswerShared => {
            replays::a_member_that_forges_an_address_is_sent_no_more_there_than_has_come_from_there
        }
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
