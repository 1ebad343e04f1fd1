//! Random operations for both allocators.

use proptest::{prelude::*, sample::Index};
use vf_alloc::FunctionId;

use crate::plain::POOLS;

/// The number of keys.
pub(crate) const KEYS: u8 = 12;

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    MarkFree(FunctionId, bool),
    Learn(FunctionId, bool),
    Withdraw(FunctionId),
    Reserve(u8, usize, u32),
    Pin(u8, usize, u32, FunctionId, bool),
    Name(u8, usize, Named),
    Attached(u8),
    Releasing(u8),
    Release(u8),
    Fail(u8),
    Forget(u8),
    Offer(u32, usize),
    /// Selects one of the VFs that were ever offered, and a number.
    NoteUntaken(Index, Number),
    EndPromise(FunctionId),
    EndPromises(u32),
    Quarantine(FunctionId),
    Clear(FunctionId),
    Withhold(FunctionId),
    StopWithholding(FunctionId),
    Restore(FunctionId, u8, bool),
    /// The second set of pools, and whether another program hands out cards.
    Reload(bool, bool),
    Ports(u16),
}

/// An offer as a request names it.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// Selects one of the VFs that were ever offered.
    pub(crate) place: Index,
    /// Names another device.
    pub(crate) moved: bool,
    /// Comes from another host than the VF's.
    pub(crate) abroad: bool,
    pub(crate) number: Number,
    pub(crate) pins: Pins,
}

/// Also pins a VF.
#[derive(Clone, Debug)]
pub(crate) enum Pins {
    Nothing,
    TheSame,
    Another(FunctionId),
}

/// The number that a request names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    /// The latest number of the VF, valid or not.
    Last,
    /// The latest number of any VF.
    LastOfAll,
    /// An earlier number.
    Before,
    /// A number that was never used.
    Next,
}

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![
        12 => Just(Number::Last),
        1 => Just(Number::LastOfAll),
        1 => Just(Number::Before),
        1 => Just(Number::Next),
    ]
}

fn named() -> impl Strategy<Value = Named> {
    let pins = prop_oneof![
        4 => Just(Pins::Nothing),
        2 => Just(Pins::TheSame),
        1 => vf().prop_map(Pins::Another),
    ];
    let rarely = || prop::bool::weighted(0.1);
    (any::<Index>(), rarely(), rarely(), number(), pins).prop_map(
        |(place, moved, abroad, number, pins)| Named { place, moved, abroad, number, pins },
    )
}

fn vf() -> impl Strategy<Value = FunctionId> {
    (0..2_u16, 0..8_u16).prop_map(|(pf, vf)| FunctionId::local(pf, vf))
}

pub(crate) fn operation() -> impl Strategy<Value = Operation> {
    let key = || 0..KEYS;
    let (pool, host) = (|| 0..POOLS.len(), || 0..2_u32);
    prop_oneof![
        8 => (vf(), prop::bool::weighted(0.1)).prop_map(|(vf, moved)| Operation::MarkFree(vf, moved)),
        1 => (vf(), prop::bool::weighted(0.1)).prop_map(|(vf, moved)| Operation::Learn(vf, moved)),
        2 => vf().prop_map(Operation::Withdraw),
        8 => (key(), pool(), host()).prop_map(|(key, pool, host)| Operation::Reserve(key, pool, host)),
        3 => (key(), pool(), host(), vf(), prop::bool::weighted(0.3)).prop_map(
            |(key, pool, host, vf, moved)| Operation::Pin(key, pool, host, vf, moved)
        ),
        6 => (key(), pool(), named()).prop_map(|(key, pool, named)| Operation::Name(key, pool, named)),
        4 => (host(), 0..5_usize).prop_map(|(host, most)| Operation::Offer(host, most)),
        2 => (any::<Index>(), number()).prop_map(|(place, number)| Operation::NoteUntaken(place, number)),
        1 => vf().prop_map(Operation::EndPromise),
        1 => host().prop_map(Operation::EndPromises),
        2 => key().prop_map(Operation::Attached),
        2 => key().prop_map(Operation::Releasing),
        5 => key().prop_map(Operation::Release),
        3 => key().prop_map(Operation::Fail),
        2 => key().prop_map(Operation::Forget),
        1 => vf().prop_map(Operation::Quarantine),
        1 => vf().prop_map(Operation::Clear),
        1 => vf().prop_map(Operation::Withhold),
        1 => vf().prop_map(Operation::StopWithholding),
        1 => (vf(), key(), any::<bool>()).prop_map(|(vf, key, held)| Operation::Restore(vf, key, held)),
        1 => any::<(bool, bool)>().prop_map(|(second_set, handed_out)| {
            Operation::Reload(second_set, handed_out)
        }),
        1 => (0..9_u16).prop_map(Operation::Ports),
    ]
}
