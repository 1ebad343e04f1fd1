//! Whether cards handle the traffic of attachments.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use offload_proto::ConditionReason;
use tokio::time::{MissedTickBehavior, interval};

use super::fault::Fault;
use crate::{
    api::Shared,
    attachments::{AttachmentFilter, Traffic},
    programmer::Programmer,
};

/// How often the rules of all ports are listed: that takes the kernel some time.
const PERIOD: Duration = Duration::from_secs(60);

/// What the latest look at the cards has found.
#[derive(Debug, Default)]
pub(super) struct LatestLook(Mutex<Vec<Fault>>);

impl LatestLook {
    pub(super) fn faults(&self) -> Vec<Fault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, faults: Vec<Fault>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }
}

/// Looks at the cards once a minute, if the driver knows any. Never returns.
pub(super) async fn watch(shared: Arc<Shared>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let programmer = shared.engine.programmer();
        if !programmer.cards().is_empty() {
            let traffic = shared.engine.operators().traffic(&AttachmentFilter::default()).await;
            shared.conditions.offload.set(faults(programmer, traffic));
        }
    }
}

fn faults(programmer: &Programmer, traffic: Traffic) -> Vec<Fault> {
    if let Some(why) = traffic.unknown {
        let message = format!("whether cards handle the traffic can't be asked: {why}");
        return vec![Fault::of_dpu(ConditionReason::TrafficUnreadable, message)];
    }
    let mut by_card = BTreeMap::<String, Handled>::new();
    for attachment in traffic.attachments {
        let card = programmer.card_of(attachment.view.record.vf);
        let (Some(card), Some(traffic)) = (card, attachment.traffic) else { continue };
        by_card
            .entry(card)
            .or_default()
            .note(traffic.offloaded.rules, traffic.offloaded.in_hardware);
    }
    by_card.iter().filter_map(|(card, handled)| handled.fault(card)).collect()
}

/// How many attachments of a card have rules, and how many of them none in hardware.
#[derive(Debug, Default)]
struct Handled {
    attachments: usize,
    in_software: usize,
}

impl Handled {
    /// Some rules always leave packets to the kernel, so that one in hardware is enough.
    fn note(&mut self, rules: u64, in_hardware: u64) {
        if rules > 0 {
            self.attachments += 1;
            self.in_software += usize::from(in_hardware == 0);
        }
    }

    fn fault(&self, card: &str) -> Option<Fault> {
        let Self { attachments, in_software } = self;
        (*in_software > 0).then(|| Fault {
            reason: ConditionReason::RulesInSoftware,
            object: format!("card/{card}"),
            message: format!(
                "card {card}: the kernel handles the traffic of {in_software} of {attachments} attachments: see whether \
                 hardware offload is on (`ethtool -k`, `hw-offload` of Open vSwitch)"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_without_a_rule_in_hardware_are_counted() {
        let mut handled = Handled::default();
        handled.note(0, 0);
        handled.note(9, 1);
        assert_eq!(handled.fault("pci/a"), None);
        handled.note(9, 0);
        let fault = handled.fault("pci/a").unwrap();
        assert_eq!(fault.object, "card/pci/a");
        assert!(fault.message.contains(" 1 of 2 "), "{fault:?}");
    }
}
