// SPDX-License-Identifier: GPL-2.0
/*
 * A switchdev driver for the ports of netdevsim's cards, which have none, so that it is seen here what a
 * BlueField says: it refuses what mlx5 refuses, takes what mlx5 takes, and says what it has taken.
 *
 * There is no switch behind it. All frames go the software's way, and a rule that is "in hardware" only counts:
 * those frames that a card would have had it decide about.
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
