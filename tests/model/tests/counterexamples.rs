//! What each part of the protocol is there for: with it taken out, the explorer finds a way to a
//! broken promise; with all in place there is none, as the tests in `holds` show. Some were found in
//! the programs by this model, as their comments say.
#![allow(clippy::print_stdout, reason = "figures for docs/RELIABILITY.md")]

use protocol_model::{
    bounds::{Bounds, Breakage},
    explorer::{SETTLES, explore},
    properties::{
        CONFIRMED_STAYS, HELD_ON_BOTH_SIDES, OF_ONE_HOST, ONE_ADDRESS, ONE_VF, OTHERS_UNTOUCHED,
        PORT_SERVES_ITS_POD,
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

#[test]
fn a_vf_that_came_back_would_not_be_had() {
    is_needed(Protection::ReturnOffers, SETTLES, bounds(2, []));
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
    let bounds = Bounds { containers: 2, ..bounds(2, [Breakage::ServiceDies]) };
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
