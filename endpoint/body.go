package endpoint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/serialization"
)

// serializers write with the first and read with all.
type serializers []serialization.Serializer

func (s serializers) writer() serialization.Serializer { return s[0] }

// marshal returns the body of a message of these types, most concrete first.
func (s serializers) marshal(types []string, v any) ([]byte, error) {
	if named, ok := s.writer().(serialization.NamedSerializer); ok {
		return named.MarshalNamed(types, v)
	}
	return s.writer().Marshal(v)
}

// reader returns the serializer of a content type: of the type as it is written, else without its
// parameters. A message without a content type has that of the first serializer.
func (s serializers) reader(contentType string) (serialization.Serializer, error) {
	if contentType == "" {
		return s.writer(), nil
	}
	if found := s.named(contentType); found != nil {
		return found, nil
	}
	if media, _, err := mime.ParseMediaType(contentType); err == nil {
		if found := s.named(media); found != nil {
			return found, nil
		}
	}
	var types []string
	for _, one := range s {
		types = append(types, one.ContentType())
	}
	return nil, fmt.Errorf("content type %.512q: this endpoint reads %q", contentType, types)
}

func (s serializers) named(contentType string) serialization.Serializer {
	for _, one := range s {
		if one.ContentType() == contentType {
			return one
		}
	}
	return nil
}

// validate reports all mistakes in the serializers of a Config.
func (s serializers) validate(bad func(format string, args ...any)) {
	seen := map[string]bool{}
	for i, one := range s {
		if one == nil {
			bad("Serializers[%d] is nil", i)
			continue
		}
		switch ct := one.ContentType(); {
		case ct == "":
			bad("Serializers[%d], of type %T, has no content type", i, one)
		case !isText(ct):
			bad("Serializers[%d], of type %T: the content type %q %s", i, one, ct, notText)
		case seen[ct]:
			bad("Serializers has two of content type %.512q", ct)
		default:
			seen[ct] = true
		}
	}
}

// withheld returns an error for a message of NServiceBus with a property whose value is not in the
// body, or is encrypted there: handlers would run on empty values. A behavior of the Receive stage
// that fills the value in removes the header.
func withheld(h header.Map, body []byte) error {
	for name := range h.All() {
		switch {
		case strings.HasPrefix(name, header.ClaimCheck):
			return claimedError(h, body)
		case name == header.EncryptionKeyID:
			return encryptedError(body)
		}
	}
	return nil
}

const withheldAdvice = "send the value itself, or add a behavior to the Receive stage that puts it into the body and removes the header"

// claimedError names the properties in a claim check (data bus). By convention the header has the
// name of the property; else it has a key, which is in the body in place of the value.
func claimedError(h header.Map, body []byte) error {
	var properties []string
	for name := range h.All() {
		key, ok := strings.CutPrefix(name, header.ClaimCheck)
		if !ok || len(properties) == maxWithheld {
			continue
		}
		if property := claimed(key, body); property != "" {
			key = property
		}
		properties = append(properties, fmt.Sprintf("%.200q", key))
	}
	return fmt.Errorf("property %s: the value is in a claim check of NServiceBus (data bus), not in the message (header %s…): %s",
		strings.Join(properties, ", "), header.ClaimCheck, withheldAdvice)
}

// encryptedError names the properties that are encrypted, as far as the body has them in a known
// form.
func encryptedError(body []byte) error {
	var properties []string
	for _, found := range encrypted().FindAllSubmatch(head(body), maxWithheld) {
		name := string(bytes.Join(found[1:], nil)) // one of the groups
		if name = fmt.Sprintf("%.200q", name); !slices.Contains(properties, name) {
			properties = append(properties, name)
		}
	}
	if properties == nil {
		properties = []string{"(unknown)"}
	}
	return fmt.Errorf("property %s: the value is encrypted by NServiceBus (header %s): %s",
		strings.Join(properties, ", "), header.EncryptionKeyID, withheldAdvice)
}

const (
	maxWithheld     = 5        // properties that an error names
	maxWithheldBody = 64 << 10 // bytes that are searched for their names
)

func head(body []byte) []byte { return body[:min(len(body), maxWithheldBody)] }

// Expressions for the beginning of a property of a body: its name is their group.
const (
	nameOf    = `"([^"\\]+)"\s*:\s*`
	objectOf  = nameOf + `\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*?` // up to a member that is neither object nor list of objects
	elementOf = `<([^\s<>/]+)[^<>]*>\s*`
)

// claimed returns the property whose value is an object with the key, in JSON or XML; "" if there
// is none.
func claimed(key string, body []byte) string {
	quoted, err := json.Marshal(key)
	if err != nil || key == "" || len(key) > 1000 {
		return ""
	}
	form, err := regexp.Compile(objectOf + `(?i:"Key")\s*:\s*` + regexp.QuoteMeta(string(quoted)) +
		`|` + elementOf + `(?:<HasValue>[^<]*</HasValue>\s*)?<Key>` + regexp.QuoteMeta(key))
	if err != nil {
		return ""
	}
	found := form.FindSubmatch(head(body))
	return string(bytes.Join(found[min(1, len(found)):], nil))
}

// encrypted returns the forms of an encrypted property in JSON and XML: an object, or a text of a
// value and its initialization vector (NServiceBus.Encryption.MessageProperty, EncryptedString and
// StringConversions).
var encrypted = sync.OnceValue(func() *regexp.Regexp {
	const (
		digit = `(?:[A-Za-z0-9+/]|\\u002[Bb]|\\/)`
		value = digit + `+={0,2}@` + digit + `{22}==`
	)
	return regexp.MustCompile(objectOf + `(?i:"EncryptedValue")\s*:\s*\{|` + nameOf + `"` + value + `"|` +
		elementOf + `(?:(?:<Value[^<>]*/>\s*)?<EncryptedValue>|` + value + `\s*<)`)
})
