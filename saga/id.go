package saga

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/recoverability"
	"github.com/holdfast-go/holdfast/transport"
)

// ID returns the id of the record of an instance. As the text of a UUID, it is the value of the
// header [header.OriginatingSagaID] of the messages that the instance sends.
func ID(endpoint, saga, key string) transport.RecordID {
	return idOf(transport.RecordName{Kind: stateful.KindOf(endpoint, saga), Key: key})
}

// idOf returns a UUID of version 8 (RFC 9562) that is derived from a name.
func idOf(name transport.RecordName) transport.RecordID {
	sum := sha256.Sum256([]byte(name.Kind + "\x00" + name.Key)) // a kind has no NUL
	id := transport.RecordID(sum[:16])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

func textOf(id transport.RecordID) string { return uuid.Text(id) }

// parseID returns the id in a header.
func parseID(text string) (id transport.RecordID, ok bool) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return id, false
	}
	digits := strings.ReplaceAll(text, "-", "")
	n, err := hex.Decode(id[:], []byte(digits))
	return id, err == nil && n == len(id) && len(digits) == 32
}

// maxText is the maximum size in bytes of a key and of the name of a time-out.
const maxText = 500

// checkText returns an error for a text that cannot be a key or a name. The error is unrecoverable:
// a retry has the same text.
func checkText(what, text string) error {
	err := error(nil)
	switch {
	case text == "":
		err = fmt.Errorf("%s is empty", what)
	case len(text) > maxText:
		err = fmt.Errorf("%s has %d bytes, and at most %d are allowed", what, len(text), maxText)
	case !utf8.ValidString(text):
		err = fmt.Errorf("%s is not valid UTF-8: %.100q", what, text)
	default:
		return nil
	}
	return recoverability.Unrecoverable(err)
}
