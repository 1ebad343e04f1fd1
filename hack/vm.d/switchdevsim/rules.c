// SPDX-License-Identifier: GPL-2.0
/*
 * Flower filters at the ingress of representors, accepted and refused like by mlx5
 * (drivers/net/ethernet/mellanox/mlx5/core/en_tc.c and en/tc/act).
 *
 * netdevsim itself accepts only BPF programs. So each of its representors gets its own netdev operations:
 * netdevsim's, except those of traffic control.
 */
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/rculist.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <net/devlink.h>
#include <net/flow_dissector.h>
#include <net/flow_offload.h>
#include <net/pkt_cls.h>

#include "switchdevsim.h"

/* Whether cards pass frames of trap rules to the kernel. Not all drivers support that action; mlx5 does. */
static bool takes_trap = true;
module_param(takes_trap, bool, 0644);

/* The supported keys and their sizes. mlx5 refuses all others (__parse_cls_flower). */
#define KEY(id, type) [FLOW_DISSECTOR_KEY_##id] = sizeof(struct flow_dissector_key_##type)
static const size_t keys[FLOW_DISSECTOR_KEY_MAX] = {
	KEY(META, meta),
	KEY(CONTROL, control),
	KEY(BASIC, basic),
	KEY(ETH_ADDRS, eth_addrs),
	KEY(VLAN, vlan),
	KEY(CVLAN, vlan),
	KEY(IPV4_ADDRS, ipv4_addrs),
	KEY(IPV6_ADDRS, ipv6_addrs),
	KEY(PORTS, ports),
	KEY(ENC_KEYID, keyid),
	KEY(ENC_IPV4_ADDRS, ipv4_addrs),
	KEY(ENC_IPV6_ADDRS, ipv6_addrs),
	KEY(ENC_PORTS, ports),
	KEY(ENC_CONTROL, control),
	KEY(TCP, tcp),
	KEY(IP, ip),
	KEY(CT, ct),
	KEY(ENC_IP, ip),
	KEY(ENC_OPTS, enc_opts),
	KEY(ICMP, icmp),
	KEY(MPLS, mpls),
};

/* Space for a frame's keys at flower's offsets. */
#define KEYS_BYTES 1024

struct rule {
	struct list_head list;
	unsigned long cookie;
	u32 chain, priority;
	__be16 protocol;
	struct flow_match match;
	atomic64_t frames, bytes;
	u64 told_frames, told_bytes, last;
	struct rcu_head rcu;
};

/* A representor. Its rules are in the order of matching. */
struct port {
	struct list_head list;
	struct net_device *dev;
	const struct net_device_ops *theirs;
	struct net_device_ops ours;
	struct packet_type tap;
	struct list_head rules;
};

static LIST_HEAD(ports);
static LIST_HEAD(blocks);

static struct port *find_port(const struct net_device *dev)
{
	struct port *port;

	list_for_each_entry(port, &ports, list)
		if (port->dev == dev)
			return port;
	return NULL;
}

/* META matches the ingress link, which is the port itself. */
static bool agrees(const struct flow_match *match, const void *seen)
{
	int key;

	for (key = 0; key < FLOW_DISSECTOR_KEY_MAX; key++) {
		size_t at = match->dissector->offset[key], byte;

		if (!dissector_uses_key(match->dissector, key) || key == FLOW_DISSECTOR_KEY_META)
			continue;
		for (byte = at; byte < at + keys[key]; byte++)
			if ((((u8 *)seen)[byte] ^ ((u8 *)match->key)[byte]) & ((u8 *)match->mask)[byte])
				return false;
	}
	return true;
}

static bool is_meant(const struct rule *rule, const struct sk_buff *skb)
{
	u8 seen[KEYS_BYTES] __aligned(sizeof(long)) = {};

	if (rule->protocol != htons(ETH_P_ALL) && rule->protocol != skb_protocol(skb, false))
		return false;
	skb_flow_dissect(skb, rule->match.dissector, seen, FLOW_DISSECTOR_F_STOP_BEFORE_ENCAP);
	return agrees(&rule->match, seen);
}

/* Counts the frame in the first matching rule, like a card. */
static int see(struct sk_buff *skb, struct net_device *dev, struct packet_type *tap, struct net_device *first)
{
	struct port *port = container_of(tap, struct port, tap);
	struct rule *rule;

	if (skb->pkt_type == PACKET_OUTGOING)
		goto seen;
	list_for_each_entry_rcu(rule, &port->rules, list) {
		if (rule->chain || !is_meant(rule, skb))
			continue;
		atomic64_inc(&rule->frames);
		atomic64_add(skb->len + ETH_HLEN, &rule->bytes);
		WRITE_ONCE(rule->last, jiffies);
		break;
	}
seen:
	consume_skb(skb);
	return NET_RX_SUCCESS;
}

static int check_keys(const struct flow_match *match, struct netlink_ext_ack *extack)
{
	int key;

	for (key = 0; key < FLOW_DISSECTOR_KEY_MAX; key++) {
		if (!dissector_uses_key(match->dissector, key))
			continue;
		if (!keys[key] || match->dissector->offset[key] + keys[key] > KEYS_BYTES) {
			NL_SET_ERR_MSG_MOD(extack, "Unsupported key");
			return -EOPNOTSUPP;
		}
	}
	return 0;
}

/* Kernels before 6.10 leave unknown flags to each driver. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 10, 0)
static bool flow_rule_is_supp_control_flags(u32 known, u32 asked, struct netlink_ext_ack *extack)
{
	if (!(asked & ~known))
		return true;
	NL_SET_ERR_MSG_MOD(extack, "Unsupported match on control.flags");
	return false;
}
#endif

/* Only whether a packet is a fragment, not whether it is the first or a later one. */
static int check_fragments(const struct flow_rule *asked, struct netlink_ext_ack *extack)
{
	struct flow_match_control match;

	if (!flow_rule_match_key(asked, FLOW_DISSECTOR_KEY_CONTROL))
		return 0;
	flow_rule_match_control(asked, &match);
	return flow_rule_is_supp_control_flags(FLOW_DIS_IS_FRAGMENT, match.mask->flags, extack) ? 0 : -EOPNOTSUPP;
}

static bool is_verdict_of_police(enum flow_action_id id)
{
	return id == FLOW_ACTION_PIPE || id == FLOW_ACTION_ACCEPT || id == FLOW_ACTION_JUMP ||
	       id == FLOW_ACTION_DROP;
}

static int check_police(const struct flow_action_entry *action, struct netlink_ext_ack *extack)
{
	if (!is_verdict_of_police(action->police.exceed.act_id) ||
	    !is_verdict_of_police(action->police.notexceed.act_id)) {
		NL_SET_ERR_MSG_MOD(extack,
				   "Offload not supported when conform-exceed action is not pipe, ok, jump or drop");
		return -EOPNOTSUPP;
	}
	if (action->police.peakrate_bytes_ps || action->police.avrate || action->police.overhead) {
		NL_SET_ERR_MSG_MOD(extack, "Offload not supported when peakrate/avrate/overhead is configured");
		return -EOPNOTSUPP;
	}
	return 0;
}

static int check_action(const struct flow_action_entry *action, struct netlink_ext_ack *extack)
{
	switch (action->id) {
	case FLOW_ACTION_ACCEPT:
	case FLOW_ACTION_DROP:
	case FLOW_ACTION_GOTO:
	case FLOW_ACTION_VLAN_PUSH:
	case FLOW_ACTION_VLAN_POP:
	case FLOW_ACTION_VLAN_MANGLE:
	case FLOW_ACTION_TUNNEL_ENCAP:
	case FLOW_ACTION_TUNNEL_DECAP:
	case FLOW_ACTION_MANGLE:
	case FLOW_ACTION_ADD:
	case FLOW_ACTION_CSUM:
	case FLOW_ACTION_CT:
		return 0;
	case FLOW_ACTION_REDIRECT:
	case FLOW_ACTION_MIRRED:
		if (is_port(action->dev))
			return 0;
		NL_SET_ERR_MSG_MOD(extack, "devices are not on same switch HW, can't offload forwarding");
		return -EOPNOTSUPP;
	case FLOW_ACTION_POLICE:
		return check_police(action, extack);
	case FLOW_ACTION_TRAP:
		if (takes_trap)
			return 0;
		fallthrough;
	default:
		NL_SET_ERR_MSG_MOD(extack, "Not implemented offload action");
		return -EOPNOTSUPP;
	}
}

static int check(const struct flow_rule *asked, struct netlink_ext_ack *extack)
{
	const struct flow_action_entry *action;
	int err, at;

	err = check_keys(&asked->match, extack);
	if (err)
		return err;
	err = check_fragments(asked, extack);
	if (err)
		return err;
	if (!flow_action_has_entries(&asked->action)) {
		NL_SET_ERR_MSG_MOD(extack, "Flow action doesn't have any entries");
		return -EINVAL;
	}
	flow_action_for_each(at, action, &asked->action) {
		err = check_action(action, extack);
		if (err)
			return err;
	}
	return 0;
}

static struct rule *find_rule(struct port *port, unsigned long cookie)
{
	struct rule *rule;

	list_for_each_entry(rule, &port->rules, list)
		if (rule->cookie == cookie)
			return rule;
	return NULL;
}

static int take_rule(struct port *port, struct flow_cls_offload *asked)
{
	struct flow_rule *wanted = flow_cls_offload_flow_rule(asked);
	struct list_head *before = &port->rules;
	struct rule *rule, *other;
	int err;

	if (!tc_can_offload_extack(port->dev, asked->common.extack))
		return -EOPNOTSUPP;
	err = check(wanted, asked->common.extack);
	if (err)
		return err;
	rule = kzalloc(sizeof(*rule), GFP_KERNEL);
	if (!rule)
		return -ENOMEM;
	rule->cookie = asked->cookie;
	rule->chain = asked->common.chain_index;
	rule->priority = asked->common.prio;
	rule->protocol = asked->common.protocol;
	/* flower owns the keys, and frees them only after it has destroyed the rule and an RCU grace period has passed. */
	rule->match = wanted->match;
	rule->last = jiffies;
	list_for_each_entry(other, &port->rules, list)
		if (other->priority <= rule->priority)
			before = &other->list;
	list_add_rcu(&rule->list, before);
	return 0;
}

static int give_rule_up(struct port *port, const struct flow_cls_offload *asked)
{
	struct rule *rule = find_rule(port, asked->cookie);

	if (!rule)
		return -ENOENT;
	list_del_rcu(&rule->list);
	kfree_rcu(rule, rcu);
	return 0;
}

static int tell_counters(struct port *port, struct flow_cls_offload *asked)
{
	struct rule *rule = find_rule(port, asked->cookie);
	u64 frames, bytes;

	if (!rule)
		return -ENOENT;
	frames = atomic64_read(&rule->frames);
	bytes = atomic64_read(&rule->bytes);
	flow_stats_update(&asked->stats, bytes - rule->told_bytes, frames - rule->told_frames, 0,
			  READ_ONCE(rule->last), FLOW_ACTION_HW_STATS_DELAYED);
	rule->told_frames = frames;
	rule->told_bytes = bytes;
	return 0;
}

static int asked_of_port(enum tc_setup_type type, void *data, void *priv)
{
	struct flow_cls_offload *asked = data;
	struct port *port = priv;

	if (type != TC_SETUP_CLSFLOWER)
		return -EOPNOTSUPP;
	switch (asked->command) {
	case FLOW_CLS_REPLACE:
		return take_rule(port, asked);
	case FLOW_CLS_DESTROY:
		return give_rule_up(port, asked);
	case FLOW_CLS_STATS:
		return tell_counters(port, asked);
	default:
		return -EOPNOTSUPP;
	}
}

static int set_up_tc(struct net_device *dev, enum tc_setup_type type, void *data)
{
	struct port *port = find_port(dev);

	if (type != TC_SETUP_BLOCK)
		return port->theirs->ndo_setup_tc(dev, type, data);
	return flow_block_cb_setup_simple(data, &blocks, asked_of_port, port, port, true);
}

/* Kernels before 6.2 ask the driver for the port. */
static const struct devlink_port *devlink_port_of(struct net_device *dev)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
	return dev->netdev_ops->ndo_get_devlink_port(dev);
#else
	return dev->devlink_port;
#endif
}

static bool is_representor(struct net_device *dev)
{
	const struct devlink_port *port = is_port(dev) ? devlink_port_of(dev) : NULL;

	return port && port->attrs.flavour == DEVLINK_PORT_FLAVOUR_PCI_VF;
}

static int add_port(struct net_device *dev)
{
	struct port *port = kzalloc(sizeof(*port), GFP_KERNEL);

	if (!port)
		return -ENOMEM;
	INIT_LIST_HEAD(&port->rules);
	port->dev = dev;
	port->theirs = dev->netdev_ops;
	port->ours = *dev->netdev_ops;
	port->ours.ndo_setup_tc = set_up_tc;
	port->tap = (struct packet_type){ .type = htons(ETH_P_ALL), .dev = dev, .func = see };
	list_add(&port->list, &ports);
	dev->netdev_ops = &port->ours;
	dev->wanted_features |= NETIF_F_HW_TC;
	netdev_update_features(dev);
	dev_add_pack(&port->tap);
	return 0;
}

static void remove_port(struct port *port)
{
	dev_remove_pack(&port->tap);
	port->dev->netdev_ops = port->theirs;
	list_del(&port->list);
	kfree(port);
}

/* Called with RTNL held, like all operations of a port. */
static int hear_of_link(struct notifier_block *block, unsigned long event, void *told)
{
	struct net_device *dev = netdev_notifier_info_to_dev(told);
	struct port *port = find_port(dev);

	if (event == NETDEV_REGISTER && !port && is_representor(dev))
		return notifier_from_errno(add_port(dev));
	if (event == NETDEV_UNREGISTER && port)
		remove_port(port);
	return NOTIFY_DONE;
}

static struct notifier_block links = { .notifier_call = hear_of_link };

int begin_rules(void)
{
	return register_netdevice_notifier(&links);
}

void end_rules(void)
{
	unregister_netdevice_notifier(&links);
}
