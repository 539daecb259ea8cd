package brokertest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

func TestACancelRequestIsKnown(t *testing.T) {
	sent, err := (&pgproto3.CancelRequest{ProcessID: 7, SecretKey: []byte{1, 2, 3, 4}}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(sent), cancelRequest) {
		t.Errorf("the client library sends %q, which does not begin with %q", sent, cancelRequest)
	}
}
