package holdfast_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// sources are the positions of what parse and testFiles return.
var sources = token.NewFileSet()

// testFile is a parsed file of tests, with its path from the root.
type testFile struct {
	path string
	*ast.File
}

// testFiles returns the tests of all packages.
func testFiles(t *testing.T) []testFile {
	t.Helper()
	all, err := parsedTests()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The name of a test has at most 50 characters: what does not fit is the comment.
func TestNamesOfTestsAreShort(t *testing.T) {
	for _, file := range testFiles(t) {
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is || f.Recv != nil || len(f.Name.Name) <= 50 {
				continue
			}
			for _, kind := range []string{"Test", "Fuzz", "Benchmark", "Example"} {
				if strings.HasPrefix(f.Name.Name, kind) {
					t.Errorf("%s: %s has %d characters", sources.Position(f.Pos()), f.Name.Name, len(f.Name.Name))
				}
			}
		}
	}
}

var parsedTests = sync.OnceValues(func() (all []testFile, err error) {
	err = filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(sources, path, nil, parser.SkipObjectResolution)
		all = append(all, testFile{filepath.ToSlash(path), file})
		return err
	})
	return all, err
})

// codeOf returns the files of a folder that are no tests, with their comments.
func codeOf(t *testing.T, folder string) []*ast.File {
	t.Helper()
	if files, ok := parsedCode[folder]; ok {
		return files
	}
	names, err := filepath.Glob(folder + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(sources, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	parsedCode[folder] = files
	return files
}

// parsedCode has what codeOf returned: several tests read the same folders, one after the other.
var parsedCode = map[string][]*ast.File{}
