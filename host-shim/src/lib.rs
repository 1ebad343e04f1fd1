//! The host's program: CNI plugin, resident agent, netns mover.
#![forbid(unsafe_code)]
