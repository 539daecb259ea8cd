package nsbxml

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"
)

// decode sets what v points to, a struct, to the message of a body.
func decode(body []byte, v any) error {
	value := reflect.ValueOf(v)
	if value.Kind() != reflect.Pointer || value.IsNil() || value.Elem().Kind() != reflect.Struct {
		return errors.New("it is no pointer to a struct")
	}
	if !utf8.Valid(body) { // the decoder does not look at comments and names
		return errors.New("the body is not valid UTF-8")
	}
	d := &decoder{xml: xml.NewDecoder(bytes.NewReader(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))))}
	root, err := d.start()
	if err != nil {
		return err
	}
	if root == nil {
		return errors.New("the body has no element")
	}
	// Old versions put messages into an element of this name.
	wrapped := strings.EqualFold(root.Name.Local, "Messages")
	if wrapped {
		if root, err = d.start(); err != nil {
			return err
		}
		if root == nil {
			return errors.New("the body holds no message")
		}
	}
	if isNil(root) {
		return errors.New("the body is nil")
	}
	if err := d.fields(value.Elem()); err != nil {
		return err
	}
	next, err := d.start()
	if err == nil && wrapped && next == nil {
		next, err = d.start()
	}
	if err == nil && next != nil {
		return errors.New("the body holds several messages, which is not supported")
	}
	return err
}

// decoder reads elements.
type decoder struct {
	xml      *xml.Decoder
	depth    int // open elements
	elements int
}

// start returns the start of the next element within the open one, or nil at the end of that.
func (d *decoder) start() (*xml.StartElement, error) {
	for {
		switch t, err := d.token(); t := t.(type) {
		case xml.StartElement:
			return &t, nil
		case xml.EndElement:
			return nil, nil //nolint:nilnil // the end is no error
		case xml.CharData:
			if len(bytes.TrimSpace(t)) > 0 {
				line, column := d.xml.InputPos()
				return nil, fmt.Errorf("line %d, column %d: text between elements", line, column)
			}
		default:
			if errors.Is(err, io.EOF) {
				return nil, nil //nolint:nilnil // the end of the body
			}
			if err != nil {
				return nil, err
			}
		}
	}
}

// token returns the next token, and keeps to the limits.
func (d *decoder) token() (xml.Token, error) {
	t, err := d.xml.Token()
	switch t.(type) {
	case xml.StartElement:
		d.depth++
		d.elements++
		if d.depth > MaxDepth || d.elements > MaxElements {
			return nil, fmt.Errorf("over %d elements in one another, or %d in all", MaxDepth, MaxElements)
		}
	case xml.EndElement:
		d.depth--
	case xml.Directive:
		return nil, errors.New("document types and entities are refused")
	}
	return t, err
}

func isNil(e *xml.StartElement) bool {
	for _, a := range e.Attr {
		if a.Name.Local == "nil" && a.Name.Space == "http://www.w3.org/2001/XMLSchema-instance" {
			return a.Value == "true" || a.Value == "1"
		}
	}
	return false
}

// skip reads to the end of the open element.
func (d *decoder) skip() error {
	for outer := d.depth - 1; d.depth > outer; {
		if _, err := d.token(); err != nil {
			return err
		}
	}
	return nil
}

// fields sets the fields of a struct to the elements within the open one, whose end it reads.
func (d *decoder) fields(v reflect.Value) error {
	fields, err := fieldsOf(v.Type())
	if err != nil {
		return err
	}
	for {
		e, err := d.start()
		if err != nil || e == nil {
			return err
		}
		found := false
		for _, f := range fields {
			if found = f.name == e.Name.Local; found {
				if err := d.value(e, v.FieldByIndex(f.index)); err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
				break
			}
		}
		if !found {
			if err := d.skip(); err != nil {
				return err
			}
		}
	}
}

// value sets v to an element, whose end it reads.
func (d *decoder) value(e *xml.StartElement, v reflect.Value) error {
	form, err := formOf(v.Type())
	if err != nil {
		return err
	}
	if isNil(e) {
		v.SetZero()
		return d.skip()
	}
	switch form {
	case formPointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(e, v.Elem())
	case formStruct:
		return d.fields(v)
	case formList:
		return d.list(v)
	case formMap:
		return d.entries(v)
	case formText, formBytes:
	}
	s, err := d.text()
	if err != nil {
		return err
	}
	if form == formText {
		return setText(v, s)
	}
	b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(s), ""))
	v.SetBytes(b)
	return err
}

// text returns the text of the open element, whose end it reads.
func (d *decoder) text() (string, error) {
	var b strings.Builder
	for {
		switch t, err := d.token(); t := t.(type) {
		case xml.CharData:
			b.Write(t)
		case xml.EndElement:
			return b.String(), nil
		case xml.StartElement:
			return "", fmt.Errorf("the element %s stands where a text is expected", t.Name.Local)
		default:
			if err != nil {
				return "", err
			}
		}
	}
}

// list appends the elements within the open one, whatever their names.
func (d *decoder) list(v reflect.Value) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for {
		e, err := d.start()
		if err != nil || e == nil {
			return err
		}
		item := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(e, item); err != nil {
			return fmt.Errorf("%d: %w", v.Len(), err)
		}
		v.Set(reflect.Append(v, item))
	}
}

// entries adds the pairs within the open element to a map.
func (d *decoder) entries(v reflect.Value) error {
	v.Set(reflect.MakeMap(v.Type()))
	for {
		if pair, err := d.start(); err != nil || pair == nil {
			return err
		}
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		parts := map[string]reflect.Value{"Key": key, "Value": value}
		for {
			e, err := d.start()
			if err != nil {
				return err
			}
			if e == nil {
				break
			}
			part, ok := parts[e.Name.Local]
			if !ok {
				return fmt.Errorf("the element %s stands where a Key and a Value are expected", e.Name.Local)
			}
			delete(parts, e.Name.Local)
			if err := d.value(e, part); err != nil {
				return fmt.Errorf("%s %d: %w", e.Name.Local, v.Len(), err)
			}
		}
		if _, missing := parts["Key"]; missing {
			return fmt.Errorf("entry %d has no Key", v.Len())
		}
		v.SetMapIndex(key, value)
	}
}
