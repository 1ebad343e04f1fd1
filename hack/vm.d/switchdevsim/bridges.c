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
struct fdb_entry {
	struct work_struct work;
	struct net_device *dev;
	netdevice_tracker held;
	u8 address[ETH_ALEN];
	u16 vlan;
};

static void tell_offloaded(struct work_struct *work)
{
	struct fdb_entry *entry = container_of(work, struct fdb_entry, work);
	struct switchdev_notifier_fdb_info told = {
		.addr = entry->address, .vid = entry->vlan, .offloaded = true,
	};

	rtnl_lock();
	call_switchdev_notifiers(SWITCHDEV_FDB_OFFLOADED, entry->dev, &told.info, NULL);
	rtnl_unlock();
	netdev_put(entry->dev, &entry->held);
	kfree(entry);
}

static int take_fdb_entry(struct net_device *dev, const struct switchdev_notifier_fdb_info *asked)
{
	struct fdb_entry *entry;

	if (!is_port(dev) || !asked->added_by_user || asked->is_local)
		return NOTIFY_DONE;
	entry = kzalloc(sizeof(*entry), GFP_ATOMIC);
	if (!entry)
		return notifier_from_errno(-ENOMEM);
	INIT_WORK(&entry->work, tell_offloaded);
	entry->dev = dev;
	ether_addr_copy(entry->address, asked->addr);
	entry->vlan = asked->vid;
	netdev_hold(dev, &entry->held, GFP_ATOMIC);
	queue_work(later, &entry->work);
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
		return take_fdb_entry(dev, told);
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
