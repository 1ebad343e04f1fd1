//! What is done to both, at random.

use proptest::prelude::*;
use vf_alloc::FunctionId;

use crate::plain::POOLS;

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Offer(FunctionId, bool),
    Withdraw(FunctionId),
    Reserve(u8, usize, u32),
    Pin(u8, usize, u32, FunctionId, bool),
    Attached(u8),
    Releasing(u8),
    Release(u8),
    Fail(u8),
    Quarantine(FunctionId),
    Clear(FunctionId),
    Withhold(FunctionId),
    StopWithholding(FunctionId),
    Restore(FunctionId, u8, bool),
    Reload(bool),
    Ports(u16),
}

pub(crate) fn operation() -> impl Strategy<Value = Operation> {
    let vf = || (0..2_u16, 0..8_u16).prop_map(|(pf, vf)| FunctionId::local(pf, vf));
    let key = || 0..12_u8;
    let (pool, host) = (|| 0..POOLS.len(), || 0..2_u32);
    prop_oneof![
        8 => (vf(), prop::bool::weighted(0.1)).prop_map(|(vf, moved)| Operation::Offer(vf, moved)),
        2 => vf().prop_map(Operation::Withdraw),
        8 => (key(), pool(), host()).prop_map(|(key, pool, host)| Operation::Reserve(key, pool, host)),
        3 => (key(), pool(), host(), vf(), prop::bool::weighted(0.3)).prop_map(
            |(key, pool, host, vf, moved)| Operation::Pin(key, pool, host, vf, moved)
        ),
        2 => key().prop_map(Operation::Attached),
        2 => key().prop_map(Operation::Releasing),
        5 => key().prop_map(Operation::Release),
        3 => key().prop_map(Operation::Fail),
        1 => vf().prop_map(Operation::Quarantine),
        1 => vf().prop_map(Operation::Clear),
        1 => vf().prop_map(Operation::Withhold),
        1 => vf().prop_map(Operation::StopWithholding),
        1 => (vf(), key(), any::<bool>()).prop_map(|(vf, key, held)| Operation::Restore(vf, key, held)),
        1 => any::<bool>().prop_map(Operation::Reload),
        1 => (0..9_u16).prop_map(Operation::Ports),
    ]
}
