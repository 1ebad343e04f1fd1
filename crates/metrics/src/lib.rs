//! Metrics of a program for a monitoring system such as Prometheus.
//!
//! - A [`Page`] is one scrape's text, OpenMetrics 1.0. It is built at most once per second from the program's state, so
//!   that no separate counters have to be kept up to date.
//! - [`Calls`] count answered calls by outcome and duration.
//! - [`Phases`] measure the phases of calls.
//! - An [`Endpoint`] serves pages over HTTP/1.1, with limits on connections and time.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod calls;
mod endpoint;
mod page;
mod phases;
mod settings;

pub use calls::{Calls, OK};
pub use endpoint::Endpoint;
pub use page::{Label, Page, label};
pub use phases::{PhaseDurations, Phases};
pub use settings::{address_line, listen_address};
