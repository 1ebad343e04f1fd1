//! VF pools. Pure: no I/O, no clock.
//!
//! An [`Allocator`] knows every VF that a host has reported, and its holder. A pool selects VFs by number or by
//! kind of card. A VF can be in several pools and has at most one holder. Free VFs can be
//! [offered](Allocator::offer) to their host, which takes one before it asks for it.
//!
//! `slot` is the state of one VF, `vfs` finds VFs by number, device and holder, and `pools` lists the free ones.
//! The allocator updates the lists after each change.
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
pub mod software_card;
mod spec;
mod state;
mod vfs;

pub use allocator::{Allocator, Offered, Request, VfOffer};
pub use device::Device;
pub use error::{ClearError, ReserveError, RestoreError};
pub use id::{FunctionId, NumberError, ParseIdError, PfId};
pub use selector::{ParseSelectorError, Selector, parse_selectors};
pub use spec::{Policy, PoolSpec, Settings, SpecError};
pub use state::{HostId, RestoredState, Usage, VfFacts, VfState, VfView};
