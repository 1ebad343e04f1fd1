//! What a program tells a monitoring system such as Prometheus, and the endpoint that it is read from.
//!
//! - A [`Page`] is what scrapes read. It is made anew each second at most, of the state that the program
//!   has anyway, so that nothing has to be kept in step. Its text is OpenMetrics 1.0.
//! - [`Calls`] are what no state tells: how many were answered, how, and how quickly.
//! - [`Phases`] tell where the time of a call goes.
//! - An [`Endpoint`] serves pages over HTTP/1.1, within bounds.
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
