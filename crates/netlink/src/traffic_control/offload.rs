//! Counts of filters in hardware.

use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcFilterFlowerOption, TcHandle, TcOption},
};

use super::{
    flower::{BY_CARD, leave_to_kernel},
    message::options_of,
};

/// Number of flower filters at a link's ingress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Number of filters.
    pub filters: u64,
    /// Number of filters that the hardware carries out, without those that trap frames to the kernel.
    pub in_hardware: u64,
}

/// Whether a filter is carried out in hardware. `None`: the object is not a flower filter, the only kind that cards
/// take over.
pub(crate) fn described_by(object: RouteNetlinkMessage) -> Option<bool> {
    let RouteNetlinkMessage::NewTrafficFilter(message) = object else { return None };
    // The kernel lists each priority once more without a filter.
    if message.header.handle == TcHandle::UNSPEC {
        return None;
    }
    let (mut is_flower, mut is_in_hardware, mut is_left_to_kernel) = (false, false, false);
    for option in options_of(&message)? {
        let TcOption::Flower(option) = option else { continue };
        is_flower = true;
        match option {
            TcFilterFlowerOption::Flags(flags) => is_in_hardware |= flags & BY_CARD != 0,
            TcFilterFlowerOption::Actions(all) => is_left_to_kernel |= leave_to_kernel(all),
            _ => {}
        }
    }
    is_flower.then_some(is_in_hardware && !is_left_to_kernel)
}

impl FromIterator<bool> for Offload {
    /// Counts filters: `true` is in hardware.
    fn from_iter<I: IntoIterator<Item = bool>>(filters: I) -> Self {
        filters.into_iter().fold(Self::default(), |so_far, is_in_hardware| Self {
            filters: so_far.filters + 1,
            in_hardware: so_far.in_hardware + u64::from(is_in_hardware),
        })
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::tc::{TcAttribute, TcMessage};

    use super::{super::flower::Verdict, *};

    const NOT_IN_HARDWARE: u32 = 1 << 3;

    fn filter(kind: &str, options: Vec<TcFilterFlowerOption>) -> RouteNetlinkMessage {
        let mut message = TcMessage::with_index(7);
        message.header.handle = 1.into();
        let options = options.into_iter().map(TcOption::Flower).collect();
        message.attributes =
            vec![TcAttribute::Kind(kind.to_owned()), TcAttribute::Options(options)];
        RouteNetlinkMessage::NewTrafficFilter(message)
    }

    #[test]
    fn offloaded_filters_are_counted() {
        use TcFilterFlowerOption::{Actions, ClassId, Flags};
        let listed = [
            filter("flower", vec![ClassId(1), Flags(BY_CARD)]),
            filter("flower", vec![Flags(BY_CARD), Actions(vec![Verdict::Pass.action()])]),
            filter("flower", vec![Flags(BY_CARD), Actions(vec![Verdict::Trap.action()])]),
            filter("flower", vec![Flags(NOT_IN_HARDWARE)]),
            // Older kernels do not report the flag.
            filter("flower", vec![ClassId(1)]),
            filter("bpf", Vec::new()),
        ];
        let offload: Offload = listed.into_iter().filter_map(described_by).collect();
        assert_eq!(offload, Offload { filters: 5, in_hardware: 2 });

        let RouteNetlinkMessage::NewTrafficFilter(mut head) = filter("flower", vec![ClassId(1)])
        else {
            unreachable!()
        };
        head.header.handle = TcHandle::UNSPEC;
        assert_eq!(described_by(RouteNetlinkMessage::NewTrafficFilter(head)), None);
    }
}
