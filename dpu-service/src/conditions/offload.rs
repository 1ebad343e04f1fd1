//! Whether cards handle the attachments' traffic in hardware.

use std::collections::BTreeMap;

use offload_proto::ConditionReason;
use parking_lot::Mutex;

use super::fault::Fault;

#[derive(Clone, Debug)]
pub(crate) struct HandledTraffic {
    pub(crate) card: String,
    /// Number of rules of its port.
    pub(crate) rules: u64,
    /// How many of them are in hardware.
    pub(crate) in_hardware: u64,
}

/// Faults of the latest check.
#[derive(Debug, Default)]
pub(crate) struct LatestLook(Mutex<Vec<Fault>>);

impl LatestLook {
    /// Stores the result of a check: the traffic of all attachments, or why it could not be read.
    pub(crate) fn note(&self, look: Result<Vec<HandledTraffic>, String>) {
        let faults = look.map_or_else(|why| unreadable(&why), |traffic| faults(&traffic));
        *self.0.lock() = faults;
    }

    /// One fault for each card that leaves traffic to the kernel.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        self.0.lock().clone()
    }
}

fn unreadable(why: &str) -> Vec<Fault> {
    let message = format!("cannot determine whether cards handle the traffic: {why}");
    vec![Fault::of_dpu(ConditionReason::TrafficUnreadable, message)]
}

fn faults(traffic: &[HandledTraffic]) -> Vec<Fault> {
    let mut by_card = BTreeMap::<&str, Handled>::new();
    for HandledTraffic { card, rules, in_hardware } in traffic {
        by_card.entry(card).or_default().note(*rules, *in_hardware);
    }
    by_card.iter().filter_map(|(card, handled)| handled.fault(card)).collect()
}

/// Counts of a card's attachments with rules, and of those without any rule in hardware.
#[derive(Debug, Default)]
struct Handled {
    attachments: usize,
    in_software: usize,
}

impl Handled {
    /// One rule in hardware is enough: some rules always pass packets to the kernel.
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
