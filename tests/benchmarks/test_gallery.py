"""The gallery's page has the pictures that are kept, and they stay small."""

from tests.benchmarks import gallery


def test_the_page_has_the_pictures_that_are_kept():
    assert gallery.PAGE.read_text() == gallery.page()
    kept = {file.stem: file.stat().st_size for file in gallery.FOLDER.iterdir()}
    pieces = [piece.name for piece in gallery.PIECES]
    assert len(set(pieces)) == len(pieces) and set(kept) <= set(pieces)
    assert max(kept.values()) <= gallery.BYTES and sum(kept.values()) < 3e6
    assert all(f"(gallery/{name}.gif)" in gallery.page() for name in kept)
