//! What each part of the protocol is there for: with it taken out, the explorer finds a way to a
//! broken promise; with all in place there is none, as the tests in `holds` show. Some were found in
//! the programs by this model, as their comments say.
#![allow(clippy::print_stdout, reason = "figures for docs/RELIABILITY.md")]

use protocol_model::{
    bounds::{Bounds, Breakage},
    explorer::{SETTLES, explore},
    properties::{
        AHEAD_IS_RECORDED, CLEAN_AT_HOME, CONFIRMED_STAYS, HELD_ON_BOTH_SIDES, OF_ONE_HOST,
        ONE_ADDRESS, ONE_VF, OTHERS_UNTOUCHED, PORT_SERVES_ITS_POD, PORT_SPEAKS_FOR_ITS_POD,
        TAKEN_IS_GIVEN,
    },
    protection::Protection,
    protocol::Protocol,
};

/// Without `protection` the promise is broken within `bounds`.
fn is_needed(protection: Protection, promise: &'static str, bounds: Bounds) {
    let without = Protocol { bounds, without: vec![protection] };
    let broken = explore(&without, usize::MAX).map_err(|found| found.promise);
    assert_eq!(broken.err(), Some(promise), "without {protection:?}");
    println!("figure: 1 protections taken out of the protocol, each missed at once");
}

/// As many faults as there are things to break.
fn bounds<const N: usize>(adds: u8, breakable: [Breakage; N]) -> Bounds {
    let faults = breakable.iter().map(|_| 1).sum();
    Bounds { adds, faults, breakable: breakable.to_vec(), ..Bounds::default() }
}

#[test]
fn a_late_release_of_an_old_sandbox_would_hit_the_new_one() {
    let bounds = bounds(2, [Breakage::OperatorReleases]);
    is_needed(Protection::AttachmentIdFence, CONFIRMED_STAYS, bounds);
}

#[test]
fn an_attach_of_an_ended_session_would_leave_an_attachment_that_nobody_knows() {
    let bounds = bounds(1, [Breakage::CallerDies, Breakage::AgentDies]);
    is_needed(Protection::SessionCheck, SETTLES, bounds);
}

#[test]
fn a_vf_moved_before_its_record_would_be_nobodys() {
    is_needed(Protection::RecordBeforeMove, HELD_ON_BOTH_SIDES, bounds(1, []));
}

#[test]
fn an_attach_answered_before_its_record_would_be_nobodys() {
    is_needed(Protection::JournalBeforeAnswer, HELD_ON_BOTH_SIDES, bounds(1, []));
}

#[test]
fn an_attach_answered_before_its_port_is_programmed_would_serve_nobody() {
    is_needed(Protection::ProgramBeforeAnswer, PORT_SERVES_ITS_POD, bounds(1, []));
}

#[test]
fn a_hello_in_the_midst_of_an_attach_would_release_it() {
    let bounds = bounds(1, [Breakage::ConnectionBreaks]);
    is_needed(Protection::PendingInHello, HELD_ON_BOTH_SIDES, bounds);
}

#[test]
fn an_inventory_overtaken_by_a_detach_would_bring_a_lost_vf_home() {
    is_needed(Protection::AsOf, HELD_ON_BOTH_SIDES, bounds(2, [Breakage::NetnsDies]));
}

/// Found in the service: it heeded the time of a Detach only where that brought the VF back.
#[test]
fn an_inventory_overtaken_by_a_detach_without_the_vf_would_bring_it_home() {
    is_needed(Protection::AsOfAbsent, HELD_ON_BOTH_SIDES, bounds(2, [Breakage::NetnsDies]));
}

#[test]
fn a_vf_still_away_would_be_given_out() {
    is_needed(Protection::FreedOnlyWhenHome, HELD_ON_BOTH_SIDES, bounds(1, [Breakage::NetnsDies]));
}

#[test]
fn an_inventory_would_free_the_vf_that_an_attach_is_about_to_move() {
    is_needed(Protection::UnderWay, HELD_ON_BOTH_SIDES, bounds(2, [Breakage::OperatorReleases]));
}

#[test]
fn a_detach_without_the_vf_would_wait_for_an_attach_that_is_over() {
    let bounds = bounds(2, [Breakage::AgentDies, Breakage::CallTimesOut]);
    is_needed(Protection::DetachEndsCalls, SETTLES, bounds);
}

#[test]
fn an_agent_that_lost_its_records_would_lose_its_pods() {
    let bounds = bounds(1, [Breakage::RecordsAreLost]);
    is_needed(Protection::UnclaimedKept, CONFIRMED_STAYS, bounds);
}

#[test]
fn an_attachment_of_the_boot_before_would_be_found_by_a_new_sandbox() {
    is_needed(Protection::BootId, CONFIRMED_STAYS, bounds(2, [Breakage::HostReboots]));
}

#[test]
fn a_release_that_could_not_be_told_would_be_forgotten() {
    is_needed(Protection::ReleasingUntilTold, SETTLES, bounds(1, [Breakage::CallTimesOut]));
}

/// The inventory that says so was overtaken by the Detach that repeats it.
#[test]
fn a_vf_that_came_back_would_not_be_had() {
    is_needed(Protection::ReturnOffers, SETTLES, bounds(1, [Breakage::CallTimesOut]));
}

/// Found in the service: a hello that had been sent before a newer one, and came after it, was
/// believed.
#[test]
fn a_hello_overtaken_by_a_newer_one_would_release_what_it_does_not_know() {
    is_needed(Protection::NewestHello, HELD_ON_BOTH_SIDES, bounds(1, [Breakage::ConnectionBreaks]));
}

/// Found in the service: it asked for what is under way only of attachments that are held.
#[test]
fn a_hello_would_free_the_vf_that_a_released_attach_is_about_to_move() {
    let bounds = bounds(1, [Breakage::ConnectionBreaks, Breakage::OperatorReleases]);
    is_needed(Protection::PendingIsToldOfRelease, HELD_ON_BOTH_SIDES, bounds);
}

/// Found in the programs: a Detach, even one without an attachment's id, was taken at any time.
#[test]
fn a_detach_of_an_ended_session_would_hit_a_newer_attachment() {
    let bounds = bounds(2, [Breakage::CallTimesOut, Breakage::ConnectionBreaks]);
    is_needed(Protection::DetachSessionCheck, CONFIRMED_STAYS, bounds);
}

/// Found in the agent: it told a DEL without a record once, and the inventory not again.
#[test]
fn a_detach_without_an_answer_would_wait_for_an_inventory_that_was_sent_before() {
    let bounds = bounds(2, [Breakage::AgentDies, Breakage::CallTimesOut]);
    is_needed(Protection::UnrecordedIsToldAgain, SETTLES, bounds);
}

/// Found in the agent: whoever gave up a repeated ADD said that the VF was home, not knowing.
#[test]
fn giving_up_a_repeated_add_would_free_the_vf_of_a_pod() {
    let bounds = bounds(2, [Breakage::RecordsAreLost, Breakage::CallTimesOut]);
    is_needed(Protection::DisownClaimsNothing, HELD_ON_BOTH_SIDES, bounds);
}

/// The DPU gives a VF out again before the host has heard that it has it back.
#[test]
fn a_second_record_would_take_over_a_vf() {
    let bounds = Bounds { containers: 2, ..bounds(2, [Breakage::ConnectionBreaks]) };
    is_needed(Protection::OneRecordPerVf, ONE_VF, bounds);
}

/// Found in the service: after a restart it learned of a VF only from an inventory that has it clean.
#[test]
fn a_vf_that_came_back_after_a_restart_would_not_be_had() {
    let bounds = bounds(1, [Breakage::ServiceDies, Breakage::CallTimesOut]);
    is_needed(Protection::KnownWhileInUse, SETTLES, bounds);
}

#[test]
fn an_add_whose_caller_died_would_be_done_for_nobody() {
    is_needed(Protection::CallerLookedFor, SETTLES, bounds(1, [Breakage::CallerDies]));
}

#[test]
fn an_add_that_nobody_was_answered_would_be_completed_by_the_next_agent() {
    let bounds = bounds(1, [Breakage::CallerDies, Breakage::AgentDies]);
    is_needed(Protection::UnansweredUndone, SETTLES, bounds);
}

#[test]
fn an_add_answered_before_that_is_recorded_would_be_undone_by_the_next_agent() {
    is_needed(Protection::KeptBeforeAnswer, CONFIRMED_STAYS, bounds(1, []));
}

#[test]
fn a_repeat_whose_caller_died_would_undo_what_was_answered() {
    is_needed(Protection::AnsweredStays, CONFIRMED_STAYS, bounds(2, [Breakage::CallerDies]));
}

/// Found in the service: of two calls on one connection the later may be served first.
#[test]
fn an_attach_that_its_detach_has_overtaken_would_reserve_what_nobody_gives_back() {
    let bounds = bounds(1, [Breakage::CallerDies]);
    is_needed(Protection::OvertakenReservesNothing, SETTLES, bounds);
}

/// Found in the service: a Detach that was given up may be served after the next ADD was answered.
#[test]
fn a_detach_that_a_later_attach_has_overtaken_would_take_that_back() {
    let faults = Bounds { faults: 2, ..bounds(2, [Breakage::CallTimesOut]) };
    is_needed(Protection::DetachBeforeLaterAttach, CONFIRMED_STAYS, faults);
}

/// With promised VFs, and so many calls of ADD.
fn promises<const N: usize>(adds: u8, breakable: [Breakage; N]) -> Bounds {
    Bounds { promises: true, ..bounds(adds, breakable) }
}

/// With promised VFs, and two containers that want one each.
fn promises_to_two<const N: usize>(breakable: [Breakage; N]) -> Bounds {
    Bounds { containers: 2, addresses: 2, ..promises(2, breakable) }
}

#[test]
fn a_vf_moved_ahead_before_that_is_recorded_would_be_nobodys() {
    is_needed(Protection::GuessBeforeMove, AHEAD_IS_RECORDED, promises(1, []));
}

#[test]
fn what_was_asked_for_beside_a_guess_would_be_left_over() {
    let bounds = promises(1, [Breakage::CallerDies]);
    is_needed(Protection::GuessDisownedByKey, SETTLES, bounds);
}

#[test]
fn a_vf_would_be_moved_that_the_dpu_gives_to_another() {
    is_needed(Protection::PromisedToNobodyElse, CLEAN_AT_HOME, promises_to_two([]));
}

/// Found in the programs: an Attach that was repeated was answered, whichever VF it named.
#[test]
fn a_vf_that_was_moved_ahead_would_stay_beside_the_one_that_was_answered() {
    let bounds = Bounds { vfs: 2, ..promises(2, [Breakage::RecordsAreLost]) };
    is_needed(Protection::PromisedOrNone, SETTLES, bounds);
}

/// A late Attach comes after its VF was told of again.
#[test]
fn an_attach_of_a_promise_that_has_passed_would_get_what_another_has_taken() {
    let bounds = promises(2, [Breakage::RuntimeGivesUp]);
    is_needed(Protection::PromiseNumbers, TAKEN_IS_GIVEN, bounds);
}

#[test]
fn what_was_promised_in_a_session_that_is_over_nobody_would_have() {
    is_needed(Protection::PromisesEnd, SETTLES, promises(0, [Breakage::ConnectionBreaks]));
}

#[test]
fn a_vf_would_be_taken_that_the_next_hello_calls_clean() {
    let bounds = promises_to_two([Breakage::ConnectionBreaks]);
    is_needed(Protection::ClosedBeforeHello, TAKEN_IS_GIVEN, bounds);
}

#[test]
fn a_hello_would_offer_a_vf_that_an_add_is_about_to_move() {
    let bounds = promises_to_two([Breakage::ConnectionBreaks]);
    is_needed(Protection::ClaimedInUse, TAKEN_IS_GIVEN, bounds);
}

/// Found in the programs: nobody said so of a VF whose Attach had not come to the DPU.
#[test]
fn a_vf_that_was_taken_for_nothing_nobody_would_have() {
    is_needed(Protection::UntakenIsTold, SETTLES, promises(1, [Breakage::CallTimesOut]));
}

#[test]
fn a_vf_that_came_back_would_not_be_taken_again() {
    is_needed(Protection::ReturnedToldAgain, SETTLES, promises(1, []));
}

#[test]
fn a_vf_would_be_moved_whose_representor_serves_nobody_since_the_service_died() {
    let bounds = promises_to_two([Breakage::ServiceDies]);
    is_needed(Protection::ClearedBeforeServing, PORT_SPEAKS_FOR_ITS_POD, bounds);
}

/// Two hosts, each of which makes so many calls of ADD, and nothing breaks.
fn two_hosts(adds: u8) -> Bounds {
    Bounds { hosts: 2, each: true, ..bounds(adds, []) }
}

#[test]
fn a_call_would_change_the_attachment_of_another_hosts_container_of_the_same_id() {
    is_needed(Protection::HostInKey, OTHERS_UNTOUCHED, two_hosts(1));
}

#[test]
fn a_hello_would_end_the_session_of_another_host() {
    is_needed(Protection::SessionOfEachHost, OTHERS_UNTOUCHED, two_hosts(0));
}

#[test]
fn a_hello_would_judge_the_attachments_of_another_host() {
    is_needed(Protection::HelloJudgesItsOwn, OTHERS_UNTOUCHED, two_hosts(1));
}

#[test]
fn a_host_would_get_the_vf_of_another() {
    is_needed(Protection::OwnVfsOnly, OF_ONE_HOST, two_hosts(1));
}

#[test]
fn an_address_would_be_given_out_while_another_host_gives_it_back() {
    is_needed(Protection::AddressFreedLast, ONE_ADDRESS, two_hosts(1));
}
