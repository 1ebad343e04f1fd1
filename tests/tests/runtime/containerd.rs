//! What containerd alone does.
