// SPDX-License-Identifier: GPL-2.0
/*
 * Bridge ports with the behaviour of mlx5 (drivers/net/ethernet/mellanox/mlx5/core/en/rep/bridge.c and
 * esw/bridge.c). Most flags are refused. VLANs, groups and static FDB entries are accepted. Learnt FDB entries
 * stay in the bridge; mlx5 offloads them, too.
 */
#include <linux/etherdevice.h>
#include <linux/if_bridge.h>
#include <linux/netdevice.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include <net/switchdev.h>

#include "switchdevsim.h"

static struct workqueue_struct *later;

/* An FDB entry to report after the bridge has released the lock of its table. */
struct station {
	struct work_struct work;
	struct net_device *dev;
	netdevice_tracker held;
	u8 address[ETH_ALEN];
	u16 vlan;
};

static void tell_offloaded(struct work_struct *work)
{
	struct station *station = container_of(work, struct station, work);
	struct switchdev_notifier_fdb_info told = {
		.addr = station->address, .vid = station->vlan, .offloaded = true,
	};

	rtnl_lock();
	call_switchdev_notifiers(SWITCHDEV_FDB_OFFLOADED, station->dev, &told.info, NULL);
	rtnl_unlock();
	netdev_put(station->dev, &station->held);
	kfree(station);
}

static int take_station(struct net_device *dev, const struct switchdev_notifier_fdb_info *asked)
{
	struct station *station;

	if (!is_port(dev) || !asked->added_by_user || asked->is_local)
		return NOTIFY_DONE;
	station = kzalloc(sizeof(*station), GFP_ATOMIC);
	if (!station)
		return notifier_from_errno(-ENOMEM);
	INIT_WORK(&station->work, tell_offloaded);
	station->dev = dev;
	ether_addr_copy(station->address, asked->addr);
	station->vlan = asked->vid;
	netdev_hold(dev, &station->held, GFP_ATOMIC);
	queue_work(later, &station->work);
	return NOTIFY_DONE;
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

static int take_object(struct net_device *dev, const void *context,
		       const struct switchdev_obj *object, struct netlink_ext_ack *extack)
{
	bool is_taken = object->id == SWITCHDEV_OBJ_ID_PORT_VLAN || object->id == SWITCHDEV_OBJ_ID_PORT_MDB;

	return is_taken ? 0 : -EOPNOTSUPP;
}

static int give_object_up(struct net_device *dev, const void *context, const struct switchdev_obj *object)
{
	return take_object(dev, context, object, NULL);
}

static int hear(struct notifier_block *block, unsigned long event, void *told)
{
	struct net_device *dev = switchdev_notifier_info_to_dev(told);
	int err;

	switch (event) {
	case SWITCHDEV_FDB_ADD_TO_DEVICE:
		return take_station(dev, told);
	case SWITCHDEV_PORT_ATTR_SET:
		err = switchdev_handle_port_attr_set(dev, told, is_port, set_attribute);
		return notifier_from_errno(err);
	case SWITCHDEV_PORT_OBJ_ADD:
		err = switchdev_handle_port_obj_add(dev, told, is_port, take_object);
		return notifier_from_errno(err);
	case SWITCHDEV_PORT_OBJ_DEL:
		err = switchdev_handle_port_obj_del(dev, told, is_port, give_object_up);
		return notifier_from_errno(err);
	default:
		return NOTIFY_DONE;
	}
}

/* The first runs in atomic context with a lock of the bridge held; work that may sleep is deferred to a queue. */
static struct notifier_block asked = { .notifier_call = hear };
static struct notifier_block told_later = { .notifier_call = hear };

int begin_bridges(void)
{
	int err;

	later = alloc_ordered_workqueue("switchdevsim", 0);
	if (!later)
		return -ENOMEM;
	err = register_switchdev_notifier(&asked);
	if (err)
		goto no_queue;
	err = register_switchdev_blocking_notifier(&told_later);
	if (err)
		goto not_asked;
	return 0;

not_asked:
	unregister_switchdev_notifier(&asked);
no_queue:
	destroy_workqueue(later);
	return err;
}

void end_bridges(void)
{
	unregister_switchdev_blocking_notifier(&told_later);
	unregister_switchdev_notifier(&asked);
	destroy_workqueue(later);
}
