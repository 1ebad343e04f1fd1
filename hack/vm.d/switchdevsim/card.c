// SPDX-License-Identifier: GPL-2.0
/*
 * A switchdev driver for the ports of netdevsim's cards, which have none. It shows a BlueField's behaviour: it
 * refuses what mlx5 refuses, accepts what mlx5 accepts, and reports what it has offloaded.
 *
 * It has no switch. Software forwards all frames, and a rule "in hardware" only counts the frames that a card
 * would match with it.
 */
#include <linux/module.h>
#include <linux/netdevice.h>

#include "switchdevsim.h"

bool is_port(const struct net_device *dev)
{
	const struct device *card = dev->dev.parent;

	return card && card->bus && !strcmp(card->bus->name, "netdevsim");
}

static int __init begin(void)
{
	int err = begin_bridges();

	if (err)
		return err;
	err = begin_rules();
	if (err)
		end_bridges();
	return err;
}

static void __exit end(void)
{
	end_rules();
	end_bridges();
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("Takes and refuses of netdevsim's ports what mlx5 takes and refuses");
MODULE_LICENSE("GPL");
