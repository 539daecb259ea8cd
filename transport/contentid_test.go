package transport_test

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport"
)

func TestContentIDsAreRecognized(t *testing.T) {
	id := transport.ContentID([16]byte{1, 2, 0xab})
	if id != "content:0102ab00000000000000000000000000" || !transport.IsContentID(id) {
		t.Errorf("the id is %q", id)
	}
	for _, other := range []string{
		"", "content:", id[:len(id)-1], id + "0", strings.ToUpper(id), " " + id, strings.TrimPrefix(id, "content:"),
		strings.Replace(id, "0", "g", 1), strings.Replace(id, "content:", "native:", 1), "content:order-17",
	} {
		if transport.IsContentID(other) {
			t.Errorf("%q is taken for a content id", other)
		}
	}
}
