//! A lab with a DPU-like DPU: its service has the speed of a DPU's cores, and its link has a DPU's latency.

use std::{sync::Arc, time::Duration};

use e2e::{CardSettings, Lab, Settings, SlowService};

use crate::{
    pictures::OURS,
    table::{Report, Row},
};

/// Latency of each direction: 1 ms for a round trip.
const ONE_WAY: Duration = Duration::from_micros(500);

/// Suffix of the name of the control group of a DPU whose ports are in another kernel.
const APART: &str = "-apart";

/// A lab with a fast DPU, and those with DPU-like ones that this machine allows.
pub(crate) struct Labs {
    ours: Lab,
    slow: Option<DpuLike>,
    apart: Option<DpuLike>,
}

impl Labs {
    pub(crate) fn start(settings: &Settings) -> Self {
        let ours = Lab::start(settings);
        let slow = reported(DpuLike::start(settings));
        Self { ours, slow, apart: reported(DpuLike::start_apart(settings)) }
    }

    pub(crate) const fn ours(&self) -> &Lab {
        &self.ours
    }

    pub(crate) const fn slow(&self) -> Option<&DpuLike> {
        self.slow.as_ref()
    }

    /// The labs with their names.
    pub(crate) fn named(&self) -> Vec<(&'static str, &Lab)> {
        let named = [
            (OURS, Some(&self.ours)),
            ("ours, DPU-like", self.slow.as_ref().map(|slow| &slow.lab)),
            ("ours, DPU-like, ports in another kernel", self.apart.as_ref().map(|slow| &slow.lab)),
        ];
        named.into_iter().filter_map(|(name, lab)| Some((name, lab?))).collect()
    }
}

/// Prints why there is no such lab.
fn reported(slow: Result<DpuLike, String>) -> Option<DpuLike> {
    let tell = |reason: &String| {
        println!("\n**NO FIGURES OF A DPU-LIKE SET-UP: {reason}**");
        eprintln!("NO FIGURES OF A DPU-LIKE SET-UP: {reason}");
    };
    slow.inspect_err(tell).ok()
}

/// A lab with a DPU-like DPU.
pub(crate) struct DpuLike {
    lab: Lab,
    /// Dropped after the service.
    slow: Arc<SlowService>,
}

impl DpuLike {
    /// Starts it, or says why it cannot be started.
    pub(crate) fn start(settings: &Settings) -> Result<Self, String> {
        Self::start_in(settings, "")
    }

    fn start_in(settings: &Settings, group: &str) -> Result<Self, String> {
        let slow = SlowService::make(group)?;
        let made = Some(Arc::clone(&slow));
        let lab = Lab::start(&Settings { proxied: true, slow: made, ..settings.clone() });
        lab.proxy().delay(ONE_WAY);
        slow.assert_slows(&lab.service);
        Ok(Self { lab, slow })
    }

    /// Starts one of a DPU whose ports are in another kernel: here all ports are set up first, and the service programs
    /// none.
    pub(crate) fn start_apart(settings: &Settings) -> Result<Self, String> {
        let card = CardSettings { has_eswitch: false, ..settings.card };
        // There is no PF that could limit what a pod may send either.
        let free = "[[network]]\nanti_spoofing = \"off\"";
        let networks = settings.networks.replace("[[network]]", free);
        let this = Self::start_in(&Settings { card, networks, ..settings.clone() }, APART)?;
        let card = &this.lab.card;
        for representor in card.representors() {
            card.dpu.ip(&["link", "set", representor["ifname"].as_str().unwrap(), "up"]);
        }
        Ok(this)
    }

    /// Prints the limits in use, and how often the service was throttled.
    pub(crate) fn print(&self, report: &mut Report) {
        let mut table = report.table("The DPU-like set-up", &["what", "figure"]);
        let ms = |duration: Duration| format!("{} ms", duration.as_secs_f64() * 1000.0);
        let share = SlowService::QUOTA.as_secs_f64() / SlowService::PERIOD.as_secs_f64() * 100.0;
        table.row(Row::of("the journal's sync takes longer by").and(ms(SlowService::SYNC)));
        table.row(Row::of("the link's round trip takes longer by").and(ms(2 * ONE_WAY)));
        table.row(Row::of("the service's share of one core").and(format!("{share:.0} %")));
        let throttled = self.slow.throttled() * 100.0;
        table.row(
            Row::of("its busy periods in which it met the end of its share")
                .and(format!("{throttled:.0} %")),
        );
    }
}
