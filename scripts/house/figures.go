package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bars.
const (
	maxMethods     = 25  // of a type
	maxTypeFiles   = 3   // with methods of a type
	maxFileLines   = 600 // of a file
	maxShellFiles  = 30  // of package endpoint
	maxCircle      = 10  // percent of the references between files, in packages of endpoint
	maxColumns     = 100 // of a line
	maxLongLines   = 2   // percent
	maxPublic      = 4.5 // pronouns in 100 words of comment, in public packages
	maxInternal    = 6   // the same, in other packages
	fewWords       = 300 // packages with fewer words of comment have no figure of pronouns
	tab            = 4   // columns
	longText       = 60  // columns of a string literal that stands on a line of any length
	shell          = "endpoint"
	internalFolder = "internal"
)

// figure is a figure of the structure.
type figure struct {
	key   string // package, and what is counted
	value float64
	bar   float64 // the figure may have this value and lower ones
}

func (f figure) String() string {
	return fmt.Sprintf("%s %v", f.key, f.value)
}

// figures returns the figures of a package.
func (p *pkg) figures() []figure {
	all := p.ofTypes()
	for _, f := range p.files {
		all = append(all, p.figure("lines of "+f.name, float64(len(f.lines)), maxFileLines))
	}
	if p.path == shell {
		all = append(all, p.figure("files", float64(len(p.files)), maxShellFiles))
	}
	if p.path == shell || strings.HasPrefix(p.path, shell+"/") {
		all = append(all, p.figure("percent of references in circles of files", p.circle(), maxCircle))
	}
	all = append(all, p.figure("percent of long lines", p.longLines(), maxLongLines))
	if pronouns, words := p.pronouns(); words >= fewWords {
		bar := maxPublic
		if p.isInternal() {
			bar = maxInternal
		}
		all = append(all, p.figure("pronouns in 100 words", pronouns, bar))
	}
	return all
}

func (p *pkg) figure(name string, value, bar float64) figure {
	return figure{p.path + " " + name, math.Round(value*10) / 10, bar}
}

// isInternal reports whether other modules cannot import the package.
func (p *pkg) isInternal() bool {
	parts := strings.Split(p.path, "/")
	return slices.Contains(parts, internalFolder) || parts[0] == "cmd" || parts[0] == "scripts"
}

// ofTypes returns the figures of the types with methods: how many methods, in how many files.
func (p *pkg) ofTypes() []figure {
	methods := map[string]int{}
	files := map[string]map[string]bool{}
	for _, f := range p.files {
		for _, d := range f.syntax.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			name := receiverOf(fn)
			methods[name]++
			if files[name] == nil {
				files[name] = map[string]bool{}
			}
			files[name][f.name] = true
		}
	}
	var all []figure
	for name, n := range methods {
		all = append(all, p.figure("methods of "+name, float64(n), maxMethods),
			p.figure("files of "+name, float64(len(files[name])), maxTypeFiles))
	}
	slices.SortFunc(all, func(a, b figure) int { return strings.Compare(a.key, b.key) })
	return all
}

// receiverOf returns the name of the type of a method.
func receiverOf(fn *ast.FuncDecl) string {
	t := fn.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.ParenExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return "?"
		}
	}
}

// circle returns the share of the references between files that lie in a circle of files, in
// percent.
func (p *pkg) circle() float64 {
	references := map[string]map[string]int{}
	for _, f := range p.files {
		references[f.name] = map[string]int{}
	}
	for name, object := range p.info.Uses {
		if object.Pkg() != p.types || isLocal(object) {
			continue
		}
		from, to := p.fileOf(name.Pos()), p.fileOf(object.Pos())
		if from == to || references[from] == nil || references[to] == nil {
			continue
		}
		references[from][to]++
	}
	circles := components(references)
	all, within := 0, 0
	for from, tos := range references {
		for to, n := range tos {
			all += n
			if circles[from] == circles[to] {
				within += n
			}
		}
	}
	return percent(within, all)
}

// isLocal reports whether an object of the package belongs to a function or a file.
func isLocal(o types.Object) bool {
	switch o := o.(type) {
	case *types.PkgName, *types.Label:
		return true
	case *types.Var:
		return !o.IsField() && o.Parent() != o.Pkg().Scope()
	case *types.Func:
		return false
	default:
		return o.Parent() != o.Pkg().Scope()
	}
}

func (p *pkg) fileOf(at token.Pos) string {
	if !at.IsValid() {
		return ""
	}
	return filepath.Base(p.set.Position(at).Filename)
}

// components returns the number of the strongly connected component of each node.
func components(edges map[string]map[string]int) map[string]int {
	reaches := map[string]map[string]bool{}
	for node := range edges {
		seen := map[string]bool{}
		for open := []string{node}; len(open) > 0; {
			at := open[len(open)-1]
			open = open[:len(open)-1]
			for to := range edges[at] {
				if !seen[to] {
					seen[to] = true
					open = append(open, to)
				}
			}
		}
		reaches[node] = seen
	}
	of := map[string]int{}
	for node := range edges {
		if of[node] > 0 {
			continue
		}
		of[node] = len(of) + 1
		for other := range reaches[node] {
			if reaches[other][node] {
				of[other] = of[node]
			}
		}
	}
	return of
}

func percent(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

var literal = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`")

// longLines returns the share of lines over maxColumns, in percent. A line with one long text does
// not count.
func (p *pkg) longLines() float64 {
	long, all := 0, 0
	for _, f := range p.files {
		for _, line := range f.lines {
			all++
			if columns(line) > maxColumns && !hasLongText(line) {
				long++
			}
		}
	}
	return percent(long, all)
}

func columns(line string) int {
	return utf8.RuneCountInString(line) + (tab-1)*strings.Count(line, "\t")
}

// hasLongText reports whether a line has a string literal, or a word such as an address, that is
// long itself.
func hasLongText(line string) bool {
	for _, text := range append(literal.FindAllString(line, -1), strings.Fields(line)...) {
		if utf8.RuneCountInString(text) >= longText {
			return true
		}
	}
	return false
}

var (
	word    = regexp.MustCompile(`[A-Za-z][A-Za-z'-]*`)
	pronoun = regexp.MustCompile(`^(?i:it|its|that|those|one|ones|they|them|their|others|other|none|which|such)$`)
)

// pronouns returns the number of pronouns in 100 words of comment, and the number of words.
func (p *pkg) pronouns() (share float64, words int) {
	found := 0
	for _, f := range p.files {
		for _, group := range f.syntax.Comments {
			for _, w := range word.FindAllString(group.Text(), -1) {
				words++
				if pronoun.MatchString(w) {
					found++
				}
			}
		}
	}
	return percent(found, words), words
}
