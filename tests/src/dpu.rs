//! A DPU, as a part of labs whose DPU is a namespace of this machine: where its service is started.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    FabricKind, Netns, OpenVswitch, Pki, Program, Settings, faults,
    settings::{Seat, vswitch_link},
};

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
    /// Its Open vSwitch. Ends after the service.
    pub(crate) vswitch: Option<OpenVswitch>,
}

impl Dpu {
    /// Starts the service that [`prepare`] has prepared in a folder.
    pub(crate) fn start_in(folder: PathBuf, netns: Arc<Netns>, settings: &Settings) -> Self {
        let vswitch = start_vswitch(&netns, settings, &folder);
        Self { service: start_service(&netns, &folder), netns, folder, vswitch }
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

/// Starts Open vSwitch, if that is the fabric, where the service of that folder looks for it.
pub(crate) fn start_vswitch(
    netns: &Netns,
    settings: &Settings,
    folder: &Path,
) -> Option<OpenVswitch> {
    if settings.fabric_kind() != Some(FabricKind::OpenVswitch) {
        return None;
    }
    let vswitch = OpenVswitch::start_in(&netns.path());
    let sockets = vswitch.socket().parent().expect("a folder").to_owned();
    std::os::unix::fs::symlink(sockets, vswitch_link(folder)).unwrap();
    Some(vswitch)
}

/// Starts the service that was prepared in a folder.
pub(crate) fn start_service(netns: &Netns, folder: &Path) -> Program {
    let configuration = folder.join("dpu-service.toml");
    let arguments = ["--config".as_ref(), configuration.as_os_str()];
    let faults = faults::folder(folder, SERVICE);
    Program::start(SERVICE, netns, folder, arguments, &[("OFFLOAD_FAULTS", &faults)])
}
