//! VF pools: pure allocation, no I/O, no clock of its own.
//!
//! An [`Allocator`] knows every VF that a host has ever offered, and who holds it. A pool is a view
//! of those VFs, by number or by kind of card; a VF may be in several pools and is still held once.
//! Free VFs can be [promised](Allocator::promise) to their host, which then takes one before it asks for it.
//!
//! Inside, `slot` is what is known of one VF, `vfs` finds VFs by number, device and holder, and `pools`
//! lists those that are free; the allocator keeps the lists in step with what it changes.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod allocator;
mod device;
mod error;
mod id;
mod pool;
mod pools;
mod selector;
mod slot;
mod spec;
mod state;
mod vfs;

pub use allocator::{Allocator, Promised, Request, VfPromise};
pub use device::Device;
pub use error::{ClearError, ReserveError, RestoreError};
pub use id::{FunctionId, NumberError, ParseIdError, PfId};
pub use selector::{ParseSelectorError, Selector, parse_selectors};
pub use spec::{Policy, PoolSpec, Settings, SpecError};
pub use state::{HostId, RestoredState, Usage, VfFacts, VfState, VfView};
