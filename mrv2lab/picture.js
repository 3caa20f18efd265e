/* Stands behind the words of a picture that is the output above, in JupyterLab and on pages made of notebooks.
   The picture becomes a part of the page: its words can be found and copied, and it turns dark with the page.
   Where it is shown in some other way, the words stay below it. Comments like this one are not stored. */
then => {
  const words = document.currentScript.previousElementSibling;
  const output = words.closest('.jp-OutputArea-child, .output');
  let picture = output?.previousElementSibling?.querySelector('img, svg');
  const [, drawn] = picture?.src?.split('data:image/svg+xml,') ?? [];
  if (drawn) {
    const paper = picture.parentElement;
    picture.outerHTML = decodeURIComponent(drawn);
    picture = paper.querySelector('svg');
  }
  if (picture?.localName !== 'svg') return;
  picture.parentElement.classList.add('mrv2lab-part');
  then(picture, words, output);
}
