package holdfast_test

import (
	"errors"
	"go/build"
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
	for _, folder := range moduleFolders(t) {
		if !strings.Contains(string(work), "\t./"+folder+"\n") && folder != "." {
			t.Errorf("go.work leaves %s out", folder)
		}
		if !slices.Contains(strings.Fields(string(modules[1])), folder) {
			t.Errorf("MODULES in the Makefile leaves %s out", folder)
		}
	}
	tested := testedFolders(t)
	for _, folder := range packageFolders(t) {
		if !slices.Contains(tested, folder) {
			t.Errorf("make test leaves %s out", folder)
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

// packageFolders returns the folders with Go files that this system compiles.
func packageFolders(t *testing.T) (folders []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		case path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node"):
			return filepath.SkipDir
		}
		if _, err := build.ImportDir(path, 0); err == nil {
			folders = append(folders, path)
		} else if _, none := errors.AsType[*build.NoGoError](err); !none {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return folders
}

// testedFolders returns the folders of the packages that make test names in the command that it
// would run.
func testedFolders(t *testing.T) (folders []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", "-n", "test")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { // those of the make that runs this test
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains([]string{"MAKEFLAGS", "MAKEOVERRIDES", "PKG", "RUN"}, name)
	})
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("make -n test: %v", err)
	}
	if !regexp.MustCompile(`(?m)^scripts/test\.sh test .*[' ]` + regexp.QuoteMeta(module+"/...'") + ` `).Match(out) {
		t.Fatalf("make test does not name %s/...:\n%s", module, out)
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages(t) { // of the same pattern
		folder, err := filepath.Rel(root, p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		folders = append(folders, folder)
	}
	return folders
}
