// Pictures that are tiles of sheets.

class Sheets {
  constructor(packed) {
    this.packed = packed;
    this.images = packed.sheets.map((text) => {
      const image = new Image();
      image.src = `data:image/jpeg;base64,${text}`;
      return image;
    });
    this.ready = Promise.all(this.images.map((image) => image.decode().catch(() => null)));
  }

  has(tile) { return Number.isInteger(tile) && tile >= 0 && tile < this.packed.count; }

  paint(context, tile, x, y, side) {
    const { side: own, per_row: perRow, per_sheet: perSheet } = this.packed;
    const place = tile % perSheet, image = this.images[Math.floor(tile / perSheet)];
    if (!image || !image.naturalWidth) return;
    context.drawImage(image, place % perRow * own, Math.floor(place / perRow) * own, own, own, x, y, side, side);
  }

  // A canvas that shows one tile; what it shows is said by `alt`.
  tile(tile, alt, name) {
    const side = Math.max(this.packed.side, 96);
    const canvas = el("canvas", { width: side, height: side, role: "img", "aria-label": alt, title: alt, class: name || "tile" });
    if (this.has(tile)) this.ready.then(() => this.paint(canvas.getContext("2d"), tile, 0, 0, side));
    return canvas;
  }
}
