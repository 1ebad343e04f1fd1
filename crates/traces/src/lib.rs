//! Distributed traces: the spans of a program's work, and the context that passes from one program to the next.
//!
//! A call that comes from outside is an [`entry`], which goes on with its caller's trace or begins one. What is done
//! for it is a [`step`], or a [`call`] of another program, which [`current`] passes the context on to. Steps and calls
//! of what nobody has asked for are no spans: there is no entry around them. What goes on when the call is answered is
//! done [`afterwards`].
//!
//! Where spans go to is set up elsewhere. Until it is, none is made, and a context that came is passed on as it is.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod context;
mod parent;
mod spans;

pub use context::{afterwards, current, follow};
pub use parent::{HEADER, TraceParent, VARIABLE, lenient};
pub use spans::{ENTRY, TARGET, call, entry, fail, in_span, step, undo};
pub use tracing::Instrument;
