package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// module is the prefix of the packages' paths, which the figures leave out.
const module = "github.com/holdfast-go/holdfast"

// pkg is a package without its tests.
type pkg struct {
	path  string // within the module; "." is the module's root
	set   *token.FileSet
	files []file
	types *types.Package
	info  types.Info
}

// file is a file of a package.
type file struct {
	name   string
	syntax *ast.File
	lines  []string
}

// listed is a package as go list describes the package.
type listed struct {
	ImportPath string
	Dir        string
	Export     string
	GoFiles    []string
	DepOnly    bool
}

// load parses and checks the types of the packages that match patterns of go list.
func load(patterns []string) ([]*pkg, error) {
	all, err := list(patterns)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	for _, l := range all {
		exports[l.ImportPath] = l.Export
	}
	set := token.NewFileSet()
	imports := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	var packages []*pkg
	for _, l := range all {
		if l.DepOnly || len(l.GoFiles) == 0 {
			continue
		}
		p, err := read(l, set, imports)
		if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

func list(patterns []string) ([]listed, error) {
	args := append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly"}, patterns...)
	var stderr bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.String())
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
}

func read(l listed, set *token.FileSet, imports types.Importer) (*pkg, error) {
	p := &pkg{path: ".", set: set}
	if rest, ok := strings.CutPrefix(l.ImportPath, module+"/"); ok {
		p.path = rest
	}
	p.info = types.Info{
		Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}
	var syntax []*ast.File
	for _, name := range l.GoFiles {
		path := filepath.Join(l.Dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(set, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(f) {
			continue
		}
		syntax = append(syntax, f)
		p.files = append(p.files, file{name, f, strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")})
	}
	checker := types.Config{Importer: imports}
	var err error
	if p.types, err = checker.Check(l.ImportPath, set, syntax, &p.info); err != nil {
		return nil, err
	}
	return p, nil
}
