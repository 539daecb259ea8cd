package holdfast_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// A test that sleeps is slow and still fails on a busy machine. In a synctest bubble a
// sleep takes no time, so it is the one place for it.
func TestTestsSleepOnlyInVirtualTime(t *testing.T) {
	for _, file := range testFiles(t) {
		for _, at := range sleeps(file.File) {
			t.Errorf("%v: time.Sleep: wait for the event instead, or test in a synctest bubble", sources.Position(at))
		}
	}
}

func TestSleepsAreFound(t *testing.T) {
	const body = "\nfunc f() { for { time.Sleep(1) } }"
	for source, want := range map[string]int{
		`package p; import "time"` + body:                               1,
		`package p; import ("time"; "testing/synctest")` + body:         0,
		`package p; import ("time"; ` + histories + `)` + body:          0,
		`package p; import "time"; var _ = time.Now`:                    0,
		`package p; import ("time"; "testing")` + body + "// synctest!": 1,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "p_test.go", source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(sleeps(file)); got != want {
			t.Errorf("%d sleeps found, want %d in:\n%s", got, want, source)
		}
	}
}

// histories is the import of a package that runs tests in bubbles.
const histories = `"github.com/holdfast-go/holdfast/internal/histories"`

// sleeps are the places where a file without bubbles sleeps.
func sleeps(file *ast.File) (found []token.Pos) {
	for _, imported := range file.Imports {
		if path := imported.Path.Value; path == `"testing/synctest"` || path == histories {
			return nil
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Sleep" {
			return true
		}
		if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" {
			found = append(found, sel.Pos())
		}
		return true
	})
	return found
}
