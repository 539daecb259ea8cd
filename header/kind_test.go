package header_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/header"
)

// names returns the names of headers that the package declares.
func names(t *testing.T) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "names.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok {
			if name, err := strconv.Unquote(lit.Value); err == nil && strings.Contains(name, ".") {
				all = append(all, name)
			}
		}
		return true
	})
	return all
}

// Each header that the package declares has a kind, except for those of a conversation and one of
// the user's.
func TestEachDeclaredHeaderHasAKind(t *testing.T) {
	var other []string
	for _, name := range names(t) {
		if header.KindOf(name) == header.KindOther {
			other = append(other, name)
		}
	}
	want := []string{header.ConversationID, header.CorrelationID, header.HoldfastPolicy, header.PreviousConversation}
	slices.Sort(other)
	slices.Sort(want)
	if diff := cmp.Diff(want, other); diff != "" {
		t.Error(diff)
	}
}

func TestKindsOfHeadersWithAPrefix(t *testing.T) {
	for name, want := range map[string]header.Kind{
		"Tenant":                                header.KindOther,
		"":                                      header.KindOther,
		"nservicebus.retries":                   header.KindOther, // names are case-sensitive
		header.ExceptionData + "Key":            header.KindException,
		"Holdfast.Fault.Later":                  header.KindFault,
		header.ClaimCheck + "Shop.Order":        header.KindSending,
		"ServiceControl.Retry.UniqueMessageId2": header.KindReceipt,
		header.Retries:                          header.KindRetries,
	} {
		if got := header.KindOf(name); got != want {
			t.Errorf("%q: kind %d, want %d", name, got, want)
		}
		if of := want >= header.KindRetries; want.OfReceipt() != of {
			t.Errorf("%q: of a receipt: %v, want %v", name, want.OfReceipt(), of)
		}
	}
}
