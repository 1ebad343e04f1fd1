//! Selectors, pools and refusals.
#![expect(clippy::unwrap_used, reason = "a test may")]

use vf_alloc::{
    Allocator, ClearError, Device, FunctionId, HostId, Offered, ParseSelectorError, PfId, Policy,
    PoolSpec, Request, ReserveError, RestoreError, RestoredState, Selector, Settings, SpecError,
    Usage, VfFacts, VfOffer, VfState, parse_selectors,
};

const HOST: HostId = HostId(1);

fn functions(pf: u16, first: u16, last: u16) -> Selector {
    Selector::Functions { pf: PfId::local(pf), first, last }
}

fn pool(name: &str, select: &str) -> PoolSpec {
    let select = parse_selectors(select).unwrap();
    PoolSpec { name: name.into(), select, policy: Policy::Spread, pinned_only: false }
}

fn device(vf: FunctionId) -> Device {
    format!("0000:0{}:00.{}", vf.pf.pf, vf.vf).into()
}

fn facts(vf: FunctionId) -> VfFacts {
    VfFacts { host: HOST, device: device(vf), vendor_id: 0x15b3, device_id: 0x101e }
}

/// Two VFs of PF 0 in pool `default`, and one outside of all pools.
fn allocator(settings: Settings) -> Allocator<u32> {
    let mut allocator = Allocator::new(vec![pool("default", "p0#0-1")], settings).unwrap();
    for vf in 0..3 {
        allocator.mark_free(FunctionId::local(0, vf), facts(FunctionId::local(0, vf)));
    }
    allocator
}

fn request(pinned: Option<&Device>) -> Request<'_> {
    Request { host: HOST, pool: "default", pinned, offered: None }
}

#[test]
fn selectors_read_back_as_shown() {
    let cases = [
        ("p0#2-45", functions(0, 2, 45)),
        ("p0#3", functions(0, 3, 3)),
        ("p0", functions(0, 0, u16::MAX)),
        ("15b3:101e", Selector::Device { vendor: 0x15b3, device: 0x101e }),
    ];
    for (text, selector) in cases {
        assert_eq!(text.parse(), Ok(selector));
        assert_eq!(selector.to_string(), text);
    }
    let several = vec![functions(1, 0, 3), functions(1, 8, 9), functions(1, 12, 12)];
    assert_eq!(parse_selectors("p1#0-3,8-9,12"), Ok(several));
}

#[test]
fn texts_that_select_nothing() {
    for text in
        ["", "p", "p0#", "p0#-", "p0#1-", "p0#+1", "p0#1,", "pf0vf1", "p0#70000", "p0#1-2-3"]
    {
        assert_eq!(parse_selectors(text), Err(ParseSelectorError::Form { text: text.into() }));
    }
    for text in ["15b3:", ":101e", "15b3:xyz", "15b30:101e", "+5b3:101e"] {
        assert!(matches!(parse_selectors(text), Err(ParseSelectorError::PciId { .. })), "{text}");
    }
    let text = "p0#9-3".to_owned();
    assert_eq!(
        parse_selectors("p0#9-3"),
        Err(ParseSelectorError::Reversed { text, first: 9, last: 3 })
    );
    let text = "p0#1,3".to_owned();
    assert_eq!("p0#1,3".parse::<Selector>(), Err(ParseSelectorError::Several { text }));
}

#[test]
fn pools_read_from_configuration() {
    let read = |text: &str| toml::from_str::<PoolSpec>(text);
    let device = Selector::Device { vendor: 0x15b3, device: 0x101e };
    let table = "{ vendor = \"15b3\", device = \"0x101e\" }";
    let listed =
        read(&format!("name = 'a'\nselect = ['p0#0-3,8', {table}]\npolicy = 'pack'")).unwrap();
    assert_eq!(listed.select, [functions(0, 0, 3), functions(0, 8, 8), device]);
    assert_eq!(listed.policy, Policy::Pack);
    assert_eq!(read(&format!("name = 'a'\nselect = {table}")).unwrap().select, [device]);
    assert_eq!(read("name = 'a'\nselect = 'p0'").unwrap().policy, Policy::Spread);
    let json = serde_json::to_string(&listed).unwrap();
    assert_eq!(serde_json::from_str::<PoolSpec>(&json).unwrap(), listed);

    let one = |text: &str| serde_json::from_str::<Selector>(text);
    assert_eq!(one("\"p0#0-3\"").unwrap(), functions(0, 0, 3));
    assert!(one("\"p0#0-3,8\"").is_err(), "two ranges");

    let refused = [
        ("name = 'a'\nselect = ['p0']\nsize = 3", "unknown field `size`"),
        ("name = 'a'\nselect = ['p0#9-3']", "write 3-9"),
        ("name = 'a'\nselect = [7]", "expected VFs such as"),
        ("name = 'a'\nselect = [{ vendor = '15b3' }]", "missing field `device`"),
        ("name = 'a'\nselect = [{ vendor = '15b3', device = 'x' }]", "not a PCI id"),
        ("name = 'a'\nselect = ['p0']\npolicy = 'random'", "unknown variant `random`"),
    ];
    for (text, message) in refused {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn pools_that_cannot_stand_side_by_side() {
    let new = |pools| Allocator::<u32>::new(pools, Settings::default()).err();
    let name = || "a".to_owned();
    let twice = vec![pool("a", "p0"), pool("a", "p1")];
    assert_eq!(new(twice), Some(SpecError::Duplicate { name: name() }));
    assert_eq!(new(vec![pool("", "p0")]), Some(SpecError::NoName));
    let empty = PoolSpec { select: Vec::new(), ..pool("a", "p0") };
    assert_eq!(new(vec![empty]), Some(SpecError::SelectsNothing { name: name() }));
    let selector = functions(0, 9, 3);
    let reversed = PoolSpec { select: vec![selector], ..pool("a", "p0") };
    assert_eq!(new(vec![reversed]), Some(SpecError::Reversed { name: name(), selector }));
    assert_eq!(new(vec![pool("a", "p0#1-5,3-9"), pool("b", "p0#4")]), None);
}

#[test]
fn requests_that_are_refused() {
    let mut allocator = allocator(Settings::default());
    let [first, second, other] = [0, 1, 2].map(|vf| FunctionId::local(0, vf));
    let unknown = Request { pool: "fast", ..request(None) };
    let error = ReserveError::PoolUnknown { pool: "fast".into() };
    assert_eq!(allocator.reserve(&unknown, 1), Err(error));

    assert_eq!(allocator.reserve(&request(Some(&device(second))), 1), Ok(second));
    assert_eq!(allocator.reserve(&request(None), 1), Ok(second), "the same key, the same VF");
    let error = ReserveError::KeyHoldsAnother { held: second, device: device(first) };
    assert_eq!(allocator.reserve(&request(Some(&device(first))), 1), Err(error));
    let abroad = Request { host: HostId(2), ..request(None) };
    assert_eq!(allocator.reserve(&abroad, 1), Err(ReserveError::OtherHost { held: second }));
    assert!(matches!(allocator.reserve(&abroad, 2), Err(ReserveError::Exhausted { .. })));

    let error = ReserveError::PinnedNotFree {
        device: device(second),
        vf: second,
        state: VfState::Reserved,
    };
    assert_eq!(allocator.reserve(&request(Some(&device(second))), 2), Err(error));
    let error = ReserveError::PinnedUnknown { device: "0000:ff:00.0".into() };
    assert_eq!(allocator.reserve(&request(Some(&"0000:ff:00.0".into())), 2), Err(error));
    let error =
        ReserveError::PinnedNotInPool { device: device(other), vf: other, pool: "default".into() };
    assert_eq!(allocator.reserve(&request(Some(&device(other))), 2), Err(error));

    assert_eq!(allocator.reserve(&request(None), 2), Ok(first));
    let usage = Usage { in_use: 2, ..Usage::default() };
    let error = ReserveError::Exhausted { pool: "default".into(), usage, named_only: 0 };
    assert_eq!(
        error.to_string(),
        "VF pool \"default\" has no free VF for this host \
         (0 free, 2 in use, 0 quarantined, 0 absent)"
    );
    assert_eq!(allocator.reserve(&request(None), 3), Err(error));
    allocator.releasing(&1);
    allocator.attached(&1);
    assert_eq!(
        allocator.reserve(&request(None), 1),
        Err(ReserveError::KeyReleasing { held: second })
    );
}

#[test]
fn failures_in_a_row_lead_to_quarantine() {
    let mut allocator = allocator(Settings { quarantine_after: 2, ..Settings::default() });
    let vf = FunctionId::local(0, 0);
    let device = device(vf);
    let request = request(Some(&device));
    let mut attach_fails = |after_success: bool| {
        allocator.reserve(&request, 1).unwrap();
        if after_success {
            allocator.attached(&1);
        }
        assert_eq!(allocator.fail(&1, "no carrier"), Some(vf));
        assert_eq!(allocator.fail(&1, "no carrier"), None);
        allocator.state(vf).unwrap()
    };
    assert_eq!(attach_fails(false), VfState::Free);
    assert_eq!(attach_fails(true), VfState::Free, "a success starts the count again");
    let quarantined = attach_fails(false);
    let reason = "2 attaches in a row failed; the last error: no carrier".to_owned();
    assert_eq!(quarantined, VfState::Quarantined { reason });
    allocator.mark_free(vf, facts(vf));
    assert!(matches!(allocator.reserve(&request, 1), Err(ReserveError::PinnedNotFree { .. })));
    assert_eq!(allocator.clear(vf), Ok(()));
    let error = ClearError::NotQuarantined { vf, state: VfState::Free };
    assert_eq!(error.to_string(), "VF pf0vf0 is not quarantined; it is free");
    assert_eq!(allocator.clear(vf), Err(error));
    let unknown = FunctionId::local(7, 7);
    assert_eq!(allocator.clear(unknown), Err(ClearError::Unknown { vf: unknown }));
    assert_eq!(allocator.reserve(&request, 1), Ok(vf));
}

/// A VF that vanished while it was held must not be used again until it is back.
#[test]
fn reported_vf_is_available_after_its_release() {
    let mut allocator =
        Allocator::new(vec![pool("default", "p0#0-1")], Settings::default()).unwrap();
    let [held, other] = [0, 1].map(|number| FunctionId::local(0, number));
    allocator.restore(held, 1, RestoredState::Held).unwrap();
    for vf in [held, other] {
        allocator.learn(vf, facts(vf));
    }
    assert_eq!(allocator.usage("default").unwrap().free, 0, "no host has reported them");
    allocator.release(&1);
    assert_eq!(allocator.reserve(&request(Some(&device(held))), 2), Ok(held));
    assert!(matches!(allocator.state(other), Some(VfState::Absent { .. })));
}

#[test]
fn withdrawn_vf_is_absent_after_a_failure() {
    let mut allocator = allocator(Settings::default());
    let vf = allocator.reserve(&request(None), 1).unwrap();
    allocator.withdraw(vf, "its PF is gone");
    assert_eq!(allocator.state(vf), Some(VfState::Reserved));
    allocator.fail(&1, "no such device").unwrap();
    assert_eq!(allocator.state(vf), Some(VfState::Absent { reason: "its PF is gone".into() }));
    allocator.mark_free(vf, facts(vf));
    assert_eq!(allocator.state(vf), Some(VfState::Free));

    allocator.reserve(&request(Some(&device(vf))), 1).unwrap();
    allocator.withdraw(vf, "in use");
    allocator.release(&1).unwrap();
    assert_eq!(allocator.state(vf), Some(VfState::Free), "its host said that it is back and clean");
}

#[test]
fn a_journal_that_contradicts_itself() {
    let mut allocator = Allocator::new(vec![pool("default", "p0")], Settings::default()).unwrap();
    let (vf, other) = (FunctionId::local(0, 0), FunctionId::local(0, 1));
    assert_eq!(allocator.restore(vf, 1, RestoredState::Held), Ok(()));
    assert_eq!(allocator.restore(vf, 1, RestoredState::Releasing), Ok(()));
    assert_eq!(allocator.state(vf), Some(VfState::Releasing));
    let error = RestoreError::VfHeld { vf, holder: 1, claimant: 2 };
    assert_eq!(error.to_string(), "VF pf0vf0 is held by 1 and claimed by 2");
    assert_eq!(allocator.restore(vf, 2, RestoredState::Held), Err(error));
    let error = RestoreError::KeyHoldsAnother { key: 1, held: vf, claimed: other };
    assert_eq!(allocator.restore(other, 1, RestoredState::Held), Err(error));

    assert_eq!(allocator.release(&1), Some(vf));
    assert!(matches!(allocator.state(vf), Some(VfState::Absent { .. })), "no host has offered it");
    allocator.mark_free(vf, facts(vf));
    assert_eq!(allocator.reserve(&request(None), 2), Ok(vf));
}

#[test]
fn unknown_vf_of_two_selectors_counts_once() {
    let pools = vec![pool("default", "p0#0-2,2-3")];
    let allocator = Allocator::<u32>::new(pools, Settings::default()).unwrap();
    assert_eq!(allocator.usage("default").unwrap().absent, 4);
}

#[test]
fn vfs_take_turns() {
    let mut allocator = allocator(Settings::default());
    let [first, second] = [0, 1].map(|vf| FunctionId::local(0, vf));
    for (key, vf) in [(1, first), (2, second), (3, first), (4, second)] {
        assert_eq!(allocator.reserve(&request(None), key), Ok(vf));
        assert_eq!(allocator.release(&key), Some(vf));
        assert_eq!(allocator.state(vf), Some(VfState::Free));
    }
}

#[test]
fn packing_goes_on_at_the_next_pf() {
    let select = vec![functions(0, 0, 0), functions(1, 0, 0)];
    let pool = PoolSpec { select, policy: Policy::Pack, ..pool("default", "p0") };
    let mut allocator = Allocator::<u32>::new(vec![pool], Settings::default()).unwrap();
    let vfs = [0, 1].map(|pf| FunctionId::local(pf, 0));
    for vf in vfs {
        allocator.mark_free(vf, facts(vf));
    }
    let mut reserved = [1, 2].map(|key| allocator.reserve(&request(None), key).unwrap());
    reserved.sort_unstable();
    assert_eq!(reserved, vfs);
}

#[test]
fn reservations_outlive_their_pool() {
    let mut allocator = allocator(Settings::default());
    let vf = allocator.reserve(&request(None), 1).unwrap();
    allocator.replace_pools(vec![pool("other", "p0#1-9")]).unwrap();
    assert_eq!(allocator.reserve(&request(None), 1), Ok(vf));
    assert_eq!(allocator.usage("default"), None);
    assert_eq!(allocator.pools_of(FunctionId::local(0, 2)).collect::<Vec<_>>(), ["other"]);
    let bad = vec![pool("a", "p0"), pool("a", "p0")];
    assert!(allocator.replace_pools(bad).is_err());
    assert_eq!(allocator.usage("other").unwrap().free, 2, "nothing has changed");
}

#[test]
fn vf_without_port_is_not_allocated() {
    let mut allocator = allocator(Settings { quarantine_after: 0, ..Settings::default() });
    let ports = |vfs: &[u16]| vfs.iter().map(|vf| FunctionId::local(0, *vf)).collect();
    allocator.set_ports(ports(&[1]));
    assert_eq!(allocator.reserve(&request(None), 1), Ok(FunctionId::local(0, 1)));
    allocator.set_ports(ports(&[]));
    allocator.release(&1);
    assert_eq!(allocator.usage("default").unwrap().absent, 2);
    allocator.withdraw(FunctionId::local(0, 0), "the host holds it");
    allocator.set_ports(ports(&[0, 1]));
    assert_eq!(allocator.usage("default").unwrap().free, 1, "both must hold");
}

#[test]
fn missing_port_is_the_only_obstacle() {
    let vf = FunctionId::local(0, 0);
    let mut allocator = allocator(Settings { quarantine_after: 0, ..Settings::default() });
    assert!(!allocator.lacks_only_port(vf), "it has one");
    allocator.set_ports([].into());
    assert!(allocator.lacks_only_port(vf));
    allocator.quarantine(vf, "broken");
    assert!(!allocator.lacks_only_port(vf));
    allocator.clear(vf).unwrap();
    allocator.withdraw(vf, "the host holds it");
    assert!(!allocator.lacks_only_port(vf));
    allocator.set_ports([vf].into());
    allocator.mark_free(vf, facts(vf));
    assert_eq!(allocator.reserve(&request(None), 1), Ok(vf));
    allocator.set_ports([].into());
    assert!(!allocator.lacks_only_port(vf), "it is held");
}

/// Another pool of the VF must not give it away while the first one hands it out.
#[test]
fn handed_out_vf_needs_a_request_by_name() {
    let handed_out = PoolSpec { pinned_only: true, ..pool("kubelet", "p0#0-1") };
    let pools = vec![handed_out, pool("default", "p0#1-2")];
    let mut allocator = Allocator::new(pools, Settings::default()).unwrap();
    for vf in 0..3 {
        allocator.mark_free(FunctionId::local(0, vf), facts(FunctionId::local(0, vf)));
    }
    let of_kubelet = |pinned| Request { pool: "kubelet", ..request(pinned) };
    let refused = allocator.reserve(&of_kubelet(None), 1).unwrap_err();
    assert_eq!(refused, ReserveError::PinnedOnly { pool: "kubelet".into() });
    assert_eq!(allocator.reserve(&request(None), 2), Ok(FunctionId::local(0, 2)));
    let named = device(FunctionId::local(0, 1));
    for pinned in [None, Some(&named)] {
        if pinned.is_some() {
            assert_eq!(allocator.reserve(&of_kubelet(pinned), 4), Ok(FunctionId::local(0, 1)));
        }
        // Free or in use, it does not count as one of the pool's own.
        assert_eq!(
            allocator.reserve(&request(None), 3).unwrap_err().to_string(),
            "VF pool \"default\" has no free VF for this host \
             (0 free, 1 in use, 0 quarantined, 0 absent; 1 more are only for requests that name one)"
        );
    }
}

/// A reference to the offer with that number.
fn naming(vf: FunctionId, number: u64) -> VfOffer {
    VfOffer { device: device(vf), number }
}

fn offered(offer: &VfOffer) -> Request<'_> {
    Request { offered: Some(offer), ..request(None) }
}

/// The offers to the host, up to `most`.
fn offers(allocator: &mut Allocator<u32>, most: usize) -> Vec<(u16, u64)> {
    let offers = allocator.offer(HOST, most).into_iter();
    offers.map(|Offered { vf, number }| (vf.vf, number)).collect()
}

/// Checks that the offer is invalid.
fn assert_stale(allocator: &mut Allocator<u32>, offer: &VfOffer) {
    let stale = allocator.reserve(&offered(offer), 99);
    assert!(matches!(stale, Err(ReserveError::NotOffered { .. })), "{stale:?}");
}

#[test]
fn offered_vf_needs_a_request_with_its_number() {
    let mut allocator = allocator(Settings::default());
    let [first, second] = [0, 1].map(|vf| FunctionId::local(0, vf));
    assert_eq!(offers(&mut allocator, 1), [(0, 1)]);
    assert_eq!(allocator.state(first), Some(VfState::Free), "for its host, it is");
    assert_eq!(allocator.reserve(&request(None), 1), Ok(second));
    let (good, other_number, other) = (naming(first, 1), naming(first, 2), naming(second, 1));
    let named = [device(first), device(second)];
    let mut refused = |request: Request<'_>| allocator.reserve(&request, 2).unwrap_err();
    assert_eq!(
        refused(request(None)).to_string(),
        "VF pool \"default\" has no VF that is free and not offered for this host \
         (1 free, 1 in use, 0 quarantined, 0 absent)"
    );
    for unoffered in [
        request(Some(&named[0])),
        offered(&other_number),
        Request { pinned: Some(&named[1]), ..offered(&good) },
    ] {
        let error = ReserveError::NotOffered { device: device(first), vf: first };
        assert_eq!(refused(unoffered), error);
    }
    let held = refused(offered(&naming(second, 1)));
    assert!(matches!(held, ReserveError::PinnedNotFree { .. }), "{held:?}");
    let abroad = Request { host: HostId(2), ..offered(&good) };
    assert!(matches!(refused(abroad), ReserveError::PinnedUnknown { .. }));
    let pinned_too = Request { pinned: Some(&named[0]), ..offered(&good) };
    assert_eq!(allocator.reserve(&pinned_too, 2), Ok(first));
    let other_pinned = Request { pinned: Some(&named[0]), ..offered(&other) };
    let error = ReserveError::KeyHoldsAnother { held: first, device: device(second) };
    assert_eq!(allocator.reserve(&other_pinned, 2), Err(error), "it offers another");
}

#[test]
fn offer_outlasts_reports_and_holders() {
    let mut allocator = allocator(Settings::default());
    let vf = FunctionId::local(0, 0);
    assert_eq!(offers(&mut allocator, 2), [(0, 1), (1, 2)]);
    assert!(offers(&mut allocator, 2).is_empty(), "it was sent");
    allocator.withdraw(vf, "the host uses it itself");
    let refused = allocator.reserve(&offered(&naming(vf, 1)), 1);
    assert!(matches!(refused, Err(ReserveError::PinnedNotFree { .. })), "{refused:?}");
    allocator.mark_free(vf, facts(vf));
    assert!(offers(&mut allocator, 2).is_empty(), "it can be named again");
    assert_eq!(allocator.reserve(&offered(&naming(vf, 1)), 1), Ok(vf));
    assert!(allocator.is_offered(vf));
    allocator.attached(&1);
    assert_eq!(allocator.release(&1), Some(vf));
    assert!(allocator.reserve(&request(None), 2).is_err());
    assert_eq!(offers(&mut allocator, 2), [(0, 3)]);
    assert_stale(&mut allocator, &naming(vf, 1));
    assert_eq!(allocator.reserve(&offered(&naming(vf, 3)), 2), Ok(vf));
}

#[test]
fn unused_vf_is_offered_again_after_its_return() {
    let mut allocator = allocator(Settings::default());
    let vf = FunctionId::local(0, 0);
    assert_eq!(offers(&mut allocator, 2), [(0, 1), (1, 2)]);
    assert_eq!(allocator.reserve(&offered(&naming(vf, 1)), 1), Ok(vf));
    allocator.fail(&1, "its port is gone");
    assert_eq!(allocator.reserve(&offered(&naming(vf, 1)), 1), Ok(vf));
    allocator.forget(&1);
    assert!(offers(&mut allocator, 2).is_empty(), "the host may still use it");
    allocator.note_declined(vf, 7);
    assert!(offers(&mut allocator, 2).is_empty(), "that is another offer");
    allocator.note_declined(vf, 1);
    assert_stale(&mut allocator, &naming(vf, 1));
    assert_eq!(offers(&mut allocator, 2), [(0, 3)]);
    assert_eq!(allocator.state(vf), Some(VfState::Free));
}

#[test]
fn unavailable_offers_do_not_block_new_offers() {
    let mut allocator = allocator(Settings::default());
    let vf = FunctionId::local(0, 0);
    assert_eq!(offers(&mut allocator, 1), [(0, 1)]);
    allocator.quarantine(vf, "it is broken");
    assert_eq!(offers(&mut allocator, 1), [(1, 2)]);
}

#[test]
fn offers_end_with_the_session() {
    let mut allocator = allocator(Settings::default());
    let vf = FunctionId::local(0, 0);
    assert_eq!(offers(&mut allocator, 2), [(0, 1), (1, 2)]);
    allocator.end_offers(HostId(2));
    assert!(allocator.reserve(&request(None), 1).is_err());
    allocator.end_offers(HOST);
    assert_stale(&mut allocator, &naming(vf, 1));
    assert_eq!(allocator.reserve(&request(None), 1), Ok(vf));
}

#[test]
fn replaced_pools_renew_offers() {
    let mut allocator = allocator(Settings::default());
    let vf = FunctionId::local(0, 0);
    assert_eq!(offers(&mut allocator, 2), [(0, 1), (1, 2)]);
    allocator.replace_pools(vec![pool("blue", "p0#0")]).unwrap();
    let mut of_blue = |number| {
        let offer = naming(vf, number);
        allocator.reserve(&Request { pool: "blue", ..offered(&offer) }, 1)
    };
    assert_eq!(of_blue(1), Err(ReserveError::NotOffered { device: device(vf), vf }));
    assert_eq!(offers(&mut allocator, 2), [(0, 3), (1, 4)]);
    assert_eq!(allocator.reserve(&Request { pool: "blue", ..offered(&naming(vf, 3)) }, 1), Ok(vf));
}

#[test]
fn offers_end_when_the_pf_moves() {
    let mut allocator = allocator(Settings::default());
    let vf = FunctionId::local(0, 0);
    assert_eq!(offers(&mut allocator, 1), [(0, 1)]);
    allocator.withdraw(vf, "its host does not report it as free");
    allocator.end_offer(vf);
    let refused = allocator.reserve(&offered(&naming(vf, 1)), 1);
    assert!(matches!(refused, Err(ReserveError::PinnedNotFree { .. })), "{refused:?}");
}

#[test]
fn all_handed_out_vfs_are_offered() {
    let mut kubelets = pool("kubelet", "p0#0-2");
    kubelets.pinned_only = true;
    let pools = vec![kubelets, pool("default", "p0#2-4")];
    let mut allocator = Allocator::<u32>::new(pools, Settings::default()).unwrap();
    let vfs = [0, 1, 2, 3, 4].map(|vf| FunctionId::local(0, vf));
    vfs.iter().for_each(|vf| allocator.mark_free(*vf, facts(*vf)));
    assert_eq!(offers(&mut allocator, 1), [(0, 1), (1, 2), (2, 3), (3, 4)]);
    let open_pools =
        vfs.map(|vf| allocator.open_pools_of(vf).map(|pool| &pool.name[..]).collect::<Vec<_>>());
    assert_eq!(open_pools, [vec![], vec![], vec![], vec!["default"], vec!["default"]]);
    let (kubelets, offer) = (device(vfs[2]), naming(vfs[2], 3));
    let unpinned = Request { pool: "kubelet", ..offered(&offer) };
    let refused = allocator.reserve(&unpinned, 1).unwrap_err();
    assert!(matches!(refused, ReserveError::NotOffered { .. }), "{refused:?}");
    let pinned = Request { pinned: Some(&kubelets), ..unpinned };
    assert_eq!(allocator.reserve(&pinned, 1), Ok(vfs[2]));
    assert!(offers(&mut allocator, 1).is_empty());
}

#[test]
fn vf_at_another_device_is_offered_again() {
    let mut allocator = allocator(Settings::default());
    let vf = FunctionId::local(0, 0);
    assert_eq!(offers(&mut allocator, 1), [(0, 1)]);
    let moved = VfFacts { device: "0000:09:00.0".into(), ..facts(vf) };
    allocator.mark_free(vf, moved);
    let stale = allocator.reserve(&offered(&naming(vf, 1)), 1);
    assert!(matches!(stale, Err(ReserveError::PinnedUnknown { .. })), "{stale:?}");
}
