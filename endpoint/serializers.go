package endpoint

import (
	"fmt"
	"mime"

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
