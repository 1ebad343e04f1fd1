// SPDX-License-Identifier: GPL-2.0
/*
 * A switchdev driver for the ports of netdevsim's cards, which have none. There is no switch behind it: it
 * refuses of bridges' ports what mlx5 refuses (mlx5_esw_bridge_port_obj_attr_set in
 * drivers/net/ethernet/mellanox/mlx5/core/en/rep/bridge.c), so that it is seen here what a BlueField says.
 */
#include <linux/device.h>
#include <linux/if_bridge.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/string.h>
#include <net/switchdev.h>

static bool is_port(const struct net_device *dev)
{
	const struct device *card = dev->dev.parent;

	return card && card->bus && !strcmp(card->bus->name, "netdevsim");
}

static int set_attribute(struct net_device *dev, const void *context,
			 const struct switchdev_attr *attribute, struct netlink_ext_ack *extack)
{
	switch (attribute->id) {
	case SWITCHDEV_ATTR_ID_PORT_PRE_BRIDGE_FLAGS:
		if (attribute->u.brport_flags.mask & ~(BR_LEARNING | BR_FLOOD | BR_MCAST_FLOOD)) {
			NL_SET_ERR_MSG_MOD(extack, "Flag is not supported");
			return -EINVAL;
		}
		return 0;
	case SWITCHDEV_ATTR_ID_PORT_BRIDGE_FLAGS:
	case SWITCHDEV_ATTR_ID_BRIDGE_AGEING_TIME:
	case SWITCHDEV_ATTR_ID_BRIDGE_VLAN_FILTERING:
	case SWITCHDEV_ATTR_ID_BRIDGE_VLAN_PROTOCOL:
	case SWITCHDEV_ATTR_ID_BRIDGE_MC_DISABLED:
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

static int hear(struct notifier_block *block, unsigned long event, void *told)
{
	struct net_device *dev = switchdev_notifier_info_to_dev(told);

	if (event != SWITCHDEV_PORT_ATTR_SET)
		return NOTIFY_DONE;
	return notifier_from_errno(switchdev_handle_port_attr_set(dev, told, is_port, set_attribute));
}

/* The bridge asks with a lock held that lets nobody sleep, and does the rest later. */
static struct notifier_block asked = { .notifier_call = hear };
static struct notifier_block told_later = { .notifier_call = hear };

static int __init begin(void)
{
	int err = register_switchdev_notifier(&asked);

	if (err)
		return err;
	err = register_switchdev_blocking_notifier(&told_later);
	if (err)
		unregister_switchdev_notifier(&asked);
	return err;
}

static void __exit end(void)
{
	unregister_switchdev_blocking_notifier(&told_later);
	unregister_switchdev_notifier(&asked);
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("Refuses of netdevsim's ports in bridges what mlx5 refuses");
MODULE_LICENSE("GPL");
