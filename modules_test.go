package holdfast_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A module that go.work, lint or make test leaves out would go untested.
func TestMakeTestCoversEveryPackage(t *testing.T) {
	work, err := os.ReadFile("go.work")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	modules := regexp.MustCompile(`(?m)^MODULES = (.*)$`).FindSubmatch(makefile)
	if modules == nil {
		t.Fatal("the Makefile has no MODULES")
	}
	tested := testedPackages(t)
	for _, folder := range moduleFolders(t) {
		if !strings.Contains(string(work), "\t./"+folder+"\n") && folder != "." {
			t.Errorf("go.work leaves %s out", folder)
		}
		if !slices.Contains(strings.Fields(string(modules[1])), folder) {
			t.Errorf("MODULES in the Makefile leaves %s out", folder)
		}
		for _, p := range goList(t, folder, "./...") {
			if !slices.Contains(tested, p) {
				t.Errorf("make test leaves %s out", p)
			}
		}
	}
}

// moduleFolders returns the folders of go.mod files, but those of tools and of test data.
func moduleFolders(t *testing.T) (folders []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "tools" || name == "node"):
			return filepath.SkipDir
		case name == "go.mod":
			folders = append(folders, filepath.Dir(path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return folders
}

// testedPackages returns the packages that make test names, from the commands that it would run.
func testedPackages(t *testing.T) (packages []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "make", "-n", "test").Output()
	if err != nil {
		t.Fatalf("make -n test: %v", err)
	}
	for _, command := range regexp.MustCompile(`go test (.*)`).FindAllStringSubmatch(string(out), -1) {
		for _, arg := range strings.Fields(command[1]) {
			if strings.HasPrefix(arg, module) || strings.HasPrefix(arg, "./") {
				packages = append(packages, goList(t, ".", arg)...)
			}
		}
	}
	return packages
}

func goList(t *testing.T, folder, pattern string) []string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", pattern)
	list.Dir = folder
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list %s in %s: %v", pattern, folder, err)
	}
	return strings.Fields(string(out))
}
