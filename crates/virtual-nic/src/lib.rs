//! A DPU made of software, plugged between a host netns and a DPU netns.
#![deny(missing_docs)]
