//! The protocol between hosts and their DPU, as a model whose every reachable state is visited.
//!
//! What the agent and the service do is cut into the steps between which something else can happen:
//! another step, a message that arrives late or never, the death of a program at every durable write,
//! of a pod's namespace, of a host. [`explorer`] tries all orders of them, within bounds: how many
//! hosts, VFs, containers, addresses, calls of ADD and faults there are. A fault may strike at every
//! moment; all else goes on until nothing is left to do.
//!
//! | module | what it models |
//! | --- | --- |
//! | [`system`] | all there is, under the names that the programs give it |
//! | [`service`] | dpu-service/src/attachments and sessions.rs |
//! | [`agent`] | host-shim/src/agent |
//! | [`runtime`] | what container runtimes ask: ids of containers are used again, ADD is repeated, DEL is owed |
//! | [`wire`] | calls, which overtake each other, and the messages of sessions, which do not |
//! | [`protocol`] | what can happen, what can break, and the protections that can be taken out |
//! | [`properties`] | what must hold at every moment, and what it means that all is in order |
//!
//! Each transition bears the name of the function that it stands for, so that a counterexample reads
//! as what the programs would do.
//!
//! Left out, because it decides nothing about who holds what: networks and their settings, the steps
//! of a saga, cool-downs (an address is given out again at once, which is the hardest case), disks
//! that refuse, resets of the card, and `Reattach`, which only hastens what the agent's upkeep does
//! anyway.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod agent;
pub mod bounds;
pub mod explorer;
pub mod faults;
pub mod host;
pub mod names;
pub mod parts;
pub mod properties;
pub mod protection;
pub mod protocol;
pub mod runtime;
pub mod service;
pub mod system;
mod tidy;
pub mod wire;
