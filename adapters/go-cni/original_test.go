//go:build original

package cni

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"reflect"
	"strings"
	"testing"

	original "github.com/containerd/go-cni"
)

// pair is a name of this package and the same name of go-cni.
type pair struct{ ours, theirs interface{} }

// The package has go-cni's names and types, so that a program compiles with either.
var beside = []pair{
	{(*CNI)(nil), (*original.CNI)(nil)},
	{New, original.New},
	{WithInterfacePrefix, original.WithInterfacePrefix},
	{WithPluginDir, original.WithPluginDir},
	{WithPluginConfDir, original.WithPluginConfDir},
	{WithPluginMaxConfNum, original.WithPluginMaxConfNum},
	{WithMinNetworkCount, original.WithMinNetworkCount},
	{WithLoNetwork, original.WithLoNetwork},
	{WithConf, original.WithConf},
	{WithConfIndex, original.WithConfIndex},
	{WithConfFile, original.WithConfFile},
	{WithConfListBytes, original.WithConfListBytes},
	{WithConfListFile, original.WithConfListFile},
	{WithDefaultConf, original.WithDefaultConf},
	{WithAllConf, original.WithAllConf},
	{WithCapabilityPortMap, original.WithCapabilityPortMap},
	{WithCapabilityIPRanges, original.WithCapabilityIPRanges},
	{WithCapabilityBandWidth, original.WithCapabilityBandWidth},
	{WithCapabilityDNS, original.WithCapabilityDNS},
	{WithCapability, original.WithCapability},
	{WithLabels, original.WithLabels},
	{WithArgs, original.WithArgs},
	{(*Result).Raw, (*original.Result).Raw},
	{ConfigResult{}, original.ConfigResult{}},
	{ConfNetwork{}, original.ConfNetwork{}},
	{NetworkConfList{}, original.NetworkConfList{}},
	{NetworkConf{}, original.NetworkConf{}},
	{Result{}, original.Result{}},
	{Config{}, original.Config{}},
	{IPConfig{}, original.IPConfig{}},
	{PortMapping{}, original.PortMapping{}},
	{IPRanges{}, original.IPRanges{}},
	{BandWidth{}, original.BandWidth{}},
	{DNS{}, original.DNS{}},
	{DefaultPrefix, original.DefaultPrefix},
	{DefaultNetDir, original.DefaultNetDir},
	{DefaultCNIDir, original.DefaultCNIDir},
	{IsCNINotInitialized, original.IsCNINotInitialized},
}

func TestNamesHaveTheTypesOfTheOriginal(t *testing.T) {
	for _, pair := range beside {
		ours, theirs := reflect.TypeOf(pair.ours), reflect.TypeOf(pair.theirs)
		if ours.String() != theirs.String() {
			t.Errorf("%s is %s", ours, theirs)
		}
		if theirs.Kind() == reflect.Struct {
			compareFields(t, ours, theirs)
		}
	}
	ours, theirs := reflect.TypeOf((*CNI)(nil)).Elem(), reflect.TypeOf((*original.CNI)(nil)).Elem()
	if ours.NumMethod() != theirs.NumMethod() {
		t.Errorf("%d methods, and %d", ours.NumMethod(), theirs.NumMethod())
	}
	for number := 0; number < theirs.NumMethod(); number++ {
		method := theirs.Method(number)
		own, ok := ours.MethodByName(method.Name)
		if !ok || own.Type.String() != method.Type.String() {
			t.Errorf("%s is %s", own.Type, method.Type)
		}
	}
}

func compareFields(t *testing.T, ours, theirs reflect.Type) {
	for number := 0; number < theirs.NumField(); number++ {
		field := theirs.Field(number)
		own, ok := ours.FieldByName(field.Name)
		if field.IsExported() && (!ok || own.Type.String() != field.Type.String()) {
			t.Errorf("%s.%s is %s", theirs, field.Name, field.Type)
		}
	}
}

// No caller can have a Network, because none is ever returned. RWMutex is go-cni's internal lock.
var unreachable = map[string]bool{"Network": true, "RWMutex": true}

func TestEveryOriginalNameExists(t *testing.T) {
	theirs, err := build.Import("github.com/containerd/go-cni", "", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	ours := exported(t, ".")
	names := exported(t, theirs.Dir)
	if len(names) < 50 {
		t.Fatalf("the original has no more than %d names", len(names))
	}
	for name := range names {
		if !ours[name] && !unreachable[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

// exported returns the exported names of the package in a folder, without methods.
func exported(t *testing.T, folder string) map[string]bool {
	noTests := func(file fs.FileInfo) bool { return !strings.HasSuffix(file.Name(), "_test.go") }
	packages, err := parser.ParseDir(token.NewFileSet(), folder, noTests, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range packages["cni"].Files {
		for name := range file.Scope.Objects {
			names[name] = ast.IsExported(name)
		}
	}
	for name, is := range names {
		if !is {
			delete(names, name)
		}
	}
	return names
}
