package cni

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// Opt is a setting, or adds a network.
type Opt func(c *libcni) error

// WithInterfacePrefix sets the prefix of interface names; a number follows.
func WithInterfacePrefix(prefix string) Opt {
	return func(c *libcni) error {
		c.prefix = prefix
		return nil
	}
}

// WithPluginDir only affects GetConfig: no plugin is executed.
func WithPluginDir(dirs []string) Opt {
	return func(c *libcni) error {
		c.pluginDirs = dirs
		return nil
	}
}

// WithPluginConfDir sets the folder of configurations, which may be empty or missing.
func WithPluginConfDir(dir string) Opt {
	return func(c *libcni) error {
		c.pluginConfDir = dir
		return nil
	}
}

// WithPluginMaxConfNum sets how many configurations of the folder are used. 0: all.
func WithPluginMaxConfNum(max int) Opt {
	return func(c *libcni) error {
		c.pluginMaxConfNum = max
		return nil
	}
}

// WithMinNetworkCount sets how many networks must be loaded. The loopback counts.
func WithMinNetworkCount(count int) Opt {
	return func(c *libcni) error {
		c.networkCount = count
		return nil
	}
}

// WithLoNetwork requests the loopback, which the agent brings up with the first network.
func WithLoNetwork(c *libcni) error {
	c.networks = append(c.networks, loopback())
	return nil
}

// WithConf adds a configuration of host-shim.
func WithConf(bytes []byte) Opt {
	return WithConfIndex(bytes, 0)
}

// WithConfIndex adds a configuration for the interface with that number.
func WithConfIndex(bytes []byte, index int) Opt {
	return func(c *libcni) error {
		return c.add(bytes, listOfOne, index)
	}
}

// WithConfFile adds a configuration of host-shim from a file.
func WithConfFile(fileName string) Opt {
	return func(c *libcni) error {
		return c.addFile(fileName, listOfOne, 0)
	}
}

// WithConfListBytes adds a list with host-shim as its plugin.
func WithConfListBytes(bytes []byte) Opt {
	return func(c *libcni) error {
		return c.add(bytes, list, len(c.networks))
	}
}

// WithConfListFile adds a list from a file, with host-shim as its plugin.
func WithConfListFile(fileName string) Opt {
	return func(c *libcni) error {
		return c.addFile(fileName, list, len(c.networks))
	}
}

// WithDefaultConf adds the configurations of host-shim in the folder, sorted by name, up to the number of
// WithPluginMaxConfNum. If there is none, it adds the DPU's default network. Configurations of other plugins are
// ignored.
func WithDefaultConf(c *libcni) error {
	return c.addFolder(c.pluginMaxConfNum)
}

// WithAllConf adds all configurations of host-shim in the folder.
func WithAllConf(c *libcni) error {
	return c.addFolder(0)
}

func (c *libcni) add(bytes []byte, read func([]byte) (*network, error), index int) error {
	network, err := read(bytes)
	if err != nil {
		return err
	}
	network.ifName = ifNameOf(c.prefix, index)
	c.networks = append(c.networks, network)
	return nil
}

func (c *libcni) addFile(fileName string, read func([]byte) (*network, error), index int) error {
	bytes, err := os.ReadFile(fileName)
	if err != nil {
		return fmt.Errorf("%v: %w", err, ErrRead)
	}
	if err := c.add(bytes, read, index); err != nil {
		return fmt.Errorf("%s: %w", fileName, err)
	}
	return nil
}

func (c *libcni) addFolder(max int) error {
	files, err := filesOf(c.pluginConfDir)
	if err != nil {
		return fmt.Errorf("%v: %w", err, ErrRead)
	}
	count := 0
	for _, file := range files {
		read := listOfOne
		if filepath.Ext(file) == ".conflist" {
			read = list
		}
		switch err := c.addFile(file, read, count); {
		case errors.Is(err, errOfOthers):
			continue
		case err != nil:
			return err
		}
		if count++; count == max {
			break
		}
	}
	if count == 0 {
		c.networks = append(c.networks, defaultNetwork(ifNameOf(c.prefix, 0)))
	}
	return nil
}

// filesOf returns the configurations of a folder, sorted by name.
func filesOf(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var files []string
	for _, entry := range entries {
		switch filepath.Ext(entry.Name()) {
		case ".conf", ".conflist", ".json":
			files = append(files, filepath.Join(folder, entry.Name()))
		}
	}
	sort.Strings(files)
	return files, nil
}

func ifNameOf(prefix string, number int) string {
	return fmt.Sprintf("%s%d", prefix, number)
}
