//! A DPU, as a part of labs whose DPU is a namespace of this machine: where its service is started.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{Netns, Pki, Program, Settings, faults, settings::Seat};

/// The service's program.
const SERVICE: &str = "dpu-service";

/// A DPU with its service.
#[derive(Debug)]
pub struct Dpu {
    /// Its service.
    pub service: Program,
    /// Its namespace.
    pub netns: Arc<Netns>,
    folder: PathBuf,
}

impl Dpu {
    /// Starts the service that [`prepare`] has prepared in a folder.
    pub(crate) fn start_in(folder: PathBuf, netns: Arc<Netns>) -> Self {
        Self { service: start_service(&netns, &folder), netns, folder }
    }

    /// Starts its service again after it ended.
    pub fn start(&mut self) {
        self.service = start_service(&self.netns, &self.folder);
    }

    /// The folder of the service's configuration, log and state.
    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }
}

/// Puts all into a folder that the service of a DPU with these cards needs.
pub(crate) fn prepare(folder: &Path, settings: &Settings, seats: &[Seat], pki: &Pki) {
    for seat in seats {
        pki.issue_once("dpu", seat.dpu);
    }
    fs::write(folder.join("dpu-service.toml"), settings.service_file_of(seats, folder, pki))
        .unwrap();
    faults::prepare(folder, SERVICE);
}

/// Starts the service that was prepared in a folder.
pub(crate) fn start_service(netns: &Netns, folder: &Path) -> Program {
    let configuration = folder.join("dpu-service.toml");
    let arguments = ["--config".as_ref(), configuration.as_os_str()];
    let faults = faults::folder(folder, SERVICE);
    Program::start(SERVICE, netns, folder, arguments, &[("OFFLOAD_FAULTS", &faults)])
}
