//! What each part of the protocol is there for: with it taken out, the explorer finds a way to a
//! broken promise; with all in place there is none, as the tests in `holds` show. Some were found in
//! the programs by this model, as their comments say.
#![allow(clippy::print_stdout, reason = "figures for docs/RELIABILITY.md")]

use protocol_model::{
    bounds::{Bounds, Breakage},
    explorer::{SETTLES, explore},
    properties::{
        AHEAD_IS_RECORDED, CONFIRMED_STAYS, GUESS_IS_NO_HINDRANCE, HELD_ON_BOTH_SIDES, OF_ONE_HOST,
        ONE_ADDRESS, ONE_VF, OTHERS_UNTOUCHED, PORT_SERVES_ITS_POD, PORT_SPEAKS_FOR_ITS_POD,
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

/// With guesses, and a call of ADD.
fn guesses<const N: usize>(breakable: [Breakage; N]) -> Bounds {
    Bounds { guesses: true, ..bounds(1, breakable) }
}

/// With guesses of two containers, which each want so many VFs.
fn guesses_of_two<const N: usize>(vfs: u8, breakable: [Breakage; N]) -> Bounds {
    Bounds { vfs, containers: 2, addresses: 2, adds: 2, ..guesses(breakable) }
}

#[test]
fn a_vf_moved_ahead_before_that_is_recorded_would_be_nobodys() {
    is_needed(Protection::GuessBeforeMove, AHEAD_IS_RECORDED, guesses([]));
}

/// Found in the design: the inventory that says that a guessed VF is in use made the DPU refuse it.
#[test]
fn a_guess_would_take_its_own_vf_from_the_dpu() {
    is_needed(Protection::GuessWithdrawsNothing, GUESS_IS_NO_HINDRANCE, guesses([]));
}

/// Found in the design: the DPU waits for an inventory that says that the VF is clean, and none does that
/// while it is guessed.
#[test]
fn a_guess_would_keep_the_vf_that_the_dpu_waits_for() {
    let bounds = Bounds { adds: 2, ..guesses([Breakage::CallTimesOut]) };
    is_needed(Protection::GuessGivesWay, SETTLES, bounds);
}

/// Found in the design, as all that keeps one pod from having another's programmed VF: a guess was a hint.
#[test]
fn a_vf_that_two_have_claimed_would_be_programmed_for_the_one_in_the_pod_of_the_other() {
    is_needed(Protection::OneClaimPerVf, PORT_SPEAKS_FOR_ITS_POD, guesses_of_two(2, []));
}

#[test]
fn another_vf_than_the_one_wished_for_would_be_in_the_pod_of_whoever_has_claimed_it() {
    let bounds = guesses_of_two(2, [Breakage::PoolsChange]);
    is_needed(Protection::WishIsExact, PORT_SPEAKS_FOR_ITS_POD, bounds);
}

#[test]
fn who_names_no_vf_would_be_given_one_that_is_in_another_pod() {
    is_needed(Protection::OthersAvoided, PORT_SPEAKS_FOR_ITS_POD, guesses_of_two(1, []));
}

#[test]
fn a_vf_would_be_moved_that_the_dpu_gives_to_who_names_none() {
    is_needed(Protection::NoMoveBesideUnnamed, PORT_SPEAKS_FOR_ITS_POD, guesses_of_two(1, []));
}

/// Neither the Attach nor the Detach that takes it back gets an answer.
#[test]
fn a_vf_would_be_moved_that_the_dpu_has_of_a_call_without_an_answer() {
    let bounds = Bounds { faults: 2, ..guesses_of_two(1, [Breakage::CallTimesOut]) };
    is_needed(Protection::NoMoveWhileUndelivered, PORT_SPEAKS_FOR_ITS_POD, bounds);
}

/// Found by this model. An agent that dies, and has its records, comes to that with a third ADD.
#[test]
fn a_vf_would_be_moved_that_the_dpu_has_of_an_earlier_agent() {
    let bounds = guesses_of_two(1, [Breakage::RecordsAreLost]);
    is_needed(Protection::UnclaimedIsNotClaimed, PORT_SPEAKS_FOR_ITS_POD, bounds);
}

#[test]
fn a_vf_would_be_moved_whose_representor_serves_nobody_since_the_service_died() {
    let bounds = guesses_of_two(1, [Breakage::ServiceDies]);
    is_needed(Protection::ClearedBeforeServing, PORT_SPEAKS_FOR_ITS_POD, bounds);
}

#[test]
fn what_was_asked_for_beside_a_guess_would_be_left_over() {
    is_needed(Protection::GuessDisownedByKey, SETTLES, guesses([Breakage::CallerDies]));
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
