//! A lab whose DPU is slow where real ones are: its service and its link.

use std::{sync::Arc, time::Duration};

use e2e::{CardSettings, Lab, Settings, SlowService};

use crate::{
    pictures::OURS,
    table::{Report, Row},
};

/// What the link takes each way, which are 1 ms for a round trip.
const ONE_WAY: Duration = Duration::from_micros(500);

/// Ends the name of the control group of a DPU whose ports are in another kernel.
const APART: &str = "-apart";

/// A lab, and beside it those with DPUs that are slow where real ones are, as many as can be had.
pub(crate) struct Labs {
    ours: Lab,
    slow: Option<DpuLike>,
    apart: Option<DpuLike>,
}

impl Labs {
    pub(crate) fn start(settings: &Settings) -> Self {
        let ours = Lab::start(settings);
        let slow = told(DpuLike::start(settings));
        Self { ours, slow, apart: told(DpuLike::start_apart(settings)) }
    }

    pub(crate) const fn ours(&self) -> &Lab {
        &self.ours
    }

    pub(crate) const fn slow(&self) -> Option<&DpuLike> {
        self.slow.as_ref()
    }

    /// Each by its name.
    pub(crate) fn named(&self) -> Vec<(&'static str, &Lab)> {
        let named = [
            (OURS, Some(&self.ours)),
            ("ours, DPU-like", self.slow.as_ref().map(|slow| &slow.lab)),
            ("ours, DPU-like, ports in another kernel", self.apart.as_ref().map(|slow| &slow.lab)),
        ];
        named.into_iter().filter_map(|(name, lab)| Some((name, lab?))).collect()
    }
}

/// Says why there is no such set-up.
fn told(slow: Result<DpuLike, String>) -> Option<DpuLike> {
    let tell = |reason: &String| {
        println!("\n**NO FIGURES OF A DPU-LIKE SET-UP: {reason}**");
        eprintln!("NO FIGURES OF A DPU-LIKE SET-UP: {reason}");
    };
    slow.inspect_err(tell).ok()
}

/// A lab whose DPU is slow.
pub(crate) struct DpuLike {
    lab: Lab,
    /// Ends after the service.
    slow: Arc<SlowService>,
}

impl DpuLike {
    /// Brings it up, or says why it can't be had.
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

    /// Likewise, of a DPU whose ports are in another kernel: here all are set up before, and the service programs none.
    pub(crate) fn start_apart(settings: &Settings) -> Result<Self, String> {
        let card = CardSettings { has_eswitch: false, ..settings.card };
        // There is no PF that could keep a pod to anything either.
        let free = "[[network]]\nanti_spoofing = \"off\"";
        let networks = settings.networks.replace("[[network]]", free);
        let this = Self::start_in(&Settings { card, networks, ..settings.clone() }, APART)?;
        let card = &this.lab.card;
        for representor in card.representors() {
            card.dpu.ip(&["link", "set", representor["ifname"].as_str().unwrap(), "up"]);
        }
        Ok(this)
    }

    /// Prints what it was made of, and how often the service met the end of its share.
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
