//! A DPU made of software, plugged between a host netns and a DPU netns.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod alias;

pub use alias::{
    MANAGEMENT_ALIAS, ParseAliasError, PciAddress, RepresentorAlias, UplinkAlias, VirtualVf,
    is_of_card,
};
